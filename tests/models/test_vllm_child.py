"""The life of a vLLM child, against a stand-in for vLLM in which faults can be forced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from leyden.errors import Unavailable, UsageError
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.version import Manifest, Version
from leyden.process import find_by_marker, new_marker, spawn

FAKE = str(Path(__file__).parent / "fakevllm.py")


def make_version(directory: Path, number: int, rank: int = 8, base: str = "version_0") -> Version:
    path = directory / f"version_{number}"
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"max_position_embeddings": 2048}')
    for name in ("tokenizer_config.json", "tokenizer.json"):
        (path / name).write_text("{}")
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    if number:
        (path / "adapter").mkdir()
        (path / "adapter" / "adapter_config.json").write_text(json.dumps({"r": rank}))
    lineage = (base,) if number else ()
    return Version(path, Manifest(version=path.name, lineage=lineage, files={}, created_at=0))


class Bench:
    """Versions of one line, and engines for them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.marker = new_marker()
        self.log = directory / "engine.log"
        self.base = make_version(directory, 0)

    def engine(self, version: Version | None = None, fake: str = "", **options):
        options = {"command": (sys.executable, FAKE), "kind": "vllm", "extra_args": ("--fake", fake), "start_timeout": 240.0} | options
        return make_engine(EngineConfig(**options), version or self.base, self.base, log_path=self.log, marker=self.marker)

    @asynccontextmanager
    async def serving(self, *args, **options):
        engine = self.engine(*args, **options)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.stop()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    assert find_by_marker(bench.marker) == []


async def listed(engine) -> list[str]:
    async with httpx.AsyncClient(timeout=60) as client:
        return [model["id"] for model in (await client.get(f"{engine.base_url}/models")).json()["data"]]


def test_start_serves_the_version_by_its_name_and_stop_leaves_nothing(bench):
    async def scenario():
        async with bench.serving(make_version(bench.directory, 1)) as engine:
            assert engine.model_name == "version_1" and not engine.can_switch
            assert "version_1" in await listed(engine)
            started = find_by_marker(bench.marker)
            assert len(started) == 3  # the keeper, the server, and what the server started
        await engine.stop()

    asyncio.run(scenario())


def test_a_death_at_start_is_reported_at_once_with_the_logs_end(bench):
    with pytest.raises(Unavailable, match="died while starting") as caught:
        asyncio.run(bench.engine(fake="die").start())
    assert "no kernel image is available" in caught.value.hint


def test_a_server_that_does_not_know_the_nonce_is_refused(bench):
    with pytest.raises(Unavailable, match="not the vLLM just started"):
        asyncio.run(bench.engine(fake="other-name").start())


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_a_stranger_on_the_port_is_refused_by_name_before_anything_starts(bench):
    with HTTPServer(("127.0.0.1", 0), Healthy) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        with pytest.raises(UsageError, match=rf"taken by .*\(pid {os.getpid()}\)"):
            asyncio.run(bench.engine(port=stranger.server_port).start())
        stranger.shutdown()
    assert not bench.log.exists()


def test_a_stranger_who_takes_the_port_during_the_start_is_refused_by_name(bench):
    """The child named here never listens; somebody else does, as soon as the engine has looked at the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def scenario():
        idle = (sys.executable, "-c", "import time; time.sleep(600)")
        starting = asyncio.create_task(bench.engine(port=port, command=idle).start())
        while not find_by_marker(bench.marker) and not starting.done():
            await asyncio.sleep(0.02)
        with HTTPServer(("127.0.0.1", port), Healthy) as stranger:
            threading.Thread(target=stranger.serve_forever, daemon=True).start()
            try:
                with pytest.raises(Unavailable, match=rf"port {port} is taken by .*\(pid {os.getpid()}\)"):
                    await starting
            finally:
                stranger.shutdown()

    asyncio.run(scenario())


def test_a_killed_engine_is_reported_and_a_stopped_one_is_not(bench):
    async def scenario():
        engine = bench.engine()
        await engine.start()
        death = asyncio.create_task(engine.wait_death())
        (server,) = [
            process for process in find_by_marker(bench.marker) if FAKE in process.cmdline() and "keeper" not in str(process.cmdline())
        ]
        server.kill()
        assert "vLLM with" in (await asyncio.wait_for(death, 30)).message
        await engine.stop()

        await engine.start()
        death = asyncio.create_task(engine.wait_death())
        await asyncio.sleep(0)  # it waits from here on
        await engine.stop()
        done, _ = await asyncio.wait({death}, timeout=0.5)
        assert not done
        death.cancel()

    asyncio.run(scenario())


def test_the_engine_ends_with_a_driver_that_is_killed(bench):
    driver = f"""
import asyncio, sys
from pathlib import Path
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from leyden.models.engine_config import EngineConfig
from leyden.models.engines import make_engine
from leyden.models.version import Manifest, Version
async def main():
    base = Version(Path({str(bench.base.path)!r}), Manifest(version="version_0", files={{}}, created_at=0))
    config = EngineConfig(kind="vllm", command=({sys.executable!r}, {FAKE!r}))
    engine = make_engine(config, base, base, log_path=Path({str(bench.log)!r}), marker={bench.marker!r} + "/driver")
    await engine.start()
    print("up", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""

    async def scenario():
        child = await spawn([sys.executable, "-c", driver], marker=bench.marker, log_path=bench.directory / "driver.log", stdout_pipe=True)
        assert await child.stdout.readline() == b"up\n"
        engine = find_by_marker(f"{bench.marker}/driver")
        assert len(engine) == 3
        os.kill(child.pid, signal.SIGKILL)
        await asyncio.to_thread(psutil.wait_procs, engine, 30)
        assert find_by_marker(f"{bench.marker}/driver") == []
        await child.stop()

    asyncio.run(scenario())


# -- adapters at run time --------------------------------------------------------------------------------------------------


def test_a_switch_serves_the_new_adapter_under_a_new_name_and_drops_the_old_one(bench):
    first, second = make_version(bench.directory, 1), make_version(bench.directory, 2)

    async def scenario():
        async with bench.serving(first, runtime_lora=True) as engine:
            assert engine.can_switch and engine.model_name.startswith("version_1-")
            names = [engine.model_name]
            for version in (second, first):
                await engine.switch(version)
                names.append(engine.model_name)
                adapters = [name for name in await listed(engine) if name.startswith("version_") and name != "version_0"]
                assert adapters == [engine.model_name]
            assert len(set(names)) == 3
            await engine.switch(bench.base)
            assert engine.model_name == "version_0"
            assert [name for name in await listed(engine) if name.startswith("version_")] == ["version_0"]

    asyncio.run(scenario())


def test_a_switch_that_fails_changes_nothing(bench):
    first, unusable = make_version(bench.directory, 1), make_version(bench.directory, 3)
    refused = make_version(bench.directory / "refused", 2)
    strange, large = make_version(bench.directory, 4, base="version_9"), make_version(bench.directory, 5, rank=64)

    async def scenario():
        async with bench.serving(first, runtime_lora=True) as engine:
            before, models = engine.model_name, await listed(engine)
            for version, error, words in (
                (refused, Unavailable, "modules_to_save is not supported"),  # it does not load
                (unusable, Unavailable, "cannot apply it"),  # it loads, and does not answer
                (strange, UsageError, "not an adapter on version_0"),
                (large, UsageError, "rank 64"),
            ):
                with pytest.raises(error, match=words):
                    await engine.switch(version)
                assert engine.model_name == before and await listed(engine) == models

    asyncio.run(scenario())


def test_an_old_adapter_that_stays_does_not_undo_the_switch(bench):
    first, second = make_version(bench.directory, 1), make_version(bench.directory, 2)

    async def scenario():
        async with bench.serving(first, fake="keeps-adapters", runtime_lora=True) as engine:
            await engine.switch(second)
            assert engine.model_name.startswith("version_2-") and engine.model_name in await listed(engine)

    asyncio.run(scenario())


def test_without_the_option_a_switch_is_a_mistake_of_the_caller(bench):
    async def scenario():
        async with bench.serving() as engine:
            with pytest.raises(RuntimeError, match="runtime_lora"):
                await engine.switch(bench.base)

    asyncio.run(scenario())


def test_the_child_gets_no_secret(bench, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-made-up")
    monkeypatch.setenv("HF_TOKEN", "hf-made-up")

    async def scenario():
        async with bench.serving():
            for process in find_by_marker(bench.marker):
                assert not {"sk-made-up", "hf-made-up"} & set(process.environ().values())

    asyncio.run(scenario())


def test_the_keeper_passes_the_exit_status_on():
    for code in (0, 3):
        command = [sys.executable, "-m", "leyden.models.keeper", sys.executable, "-c", f"raise SystemExit({code})"]
        assert subprocess.run(command).returncode == code


def test_serve_in_the_foreground_ends_in_good_order(bench):
    async def scenario():
        command = [sys.executable, "-m", "leyden", "serve", str(bench.base.path), "--port", "0", "--command", f"{sys.executable} {FAKE}"]
        child = await spawn(command, marker=bench.marker, log_path=bench.directory / "serve.log")
        while "serving version_0 at http://127.0.0.1:" not in child.tail():
            assert child.returncode is None, child.tail()
            await asyncio.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 143
        assert find_by_marker(child.marker) == []
        await child.stop()

    asyncio.run(scenario())
