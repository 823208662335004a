"""The whole loop without a model: the store, the proxy, the registry and every step are real; what takes minutes is played.

A runner answers with fixed tokens and with a reward that depends on the task and on the version that is served; a training leaves a
directory of a few bytes; a verification finds nothing. ``rewards(version, task, mode)`` says how good each version is.
"""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from leyden.algorithm.selection import SelectionConfig
from leyden.algorithm.sft import improve
from leyden.algorithm.sft.job import RESULT_FILE, TrainResult
from leyden.algorithm.sft.loop import run_sft
from leyden.algorithm.sft.phases import Parts
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.tasks import number_tasks
from leyden.models.registry import Registry
from leyden.models.verifier import Check, Report
from leyden.proxy import LLMProxy
from leyden.server.sqlstore import SQLStore
from leyden.types import Generation, Reward

END = 2
MODEL = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja", "model.safetensors")
SMALL = SelectionConfig(min_rows=2)


class InstantEngine:
    can_switch = exact = False
    base_url = "http://127.0.0.1:9/v1"

    def __init__(self, version) -> None:
        self.model_name = version.name

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def wait_death(self):
        await asyncio.Event().wait()


@dataclass
class Played:
    summary: object
    run: RunDir
    registry: Registry
    said: str
    served: list[str] = field(default_factory=list)


def make_model(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "x"}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END}))
    (directory / "chat_template.jinja").write_text("x")
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return directory


def one_call(rollout, version):
    """What an agent's calls were, as fields of a generation: one, which ended by itself."""
    body = [3 + ord(character) % 50 for character in f"{rollout.id} {version}"]
    return [{"prompt_token_ids": [1, 5], "response_token_ids": [*body, END], "finish_reason": "stop"}]


def play(
    directory: Path, monkeypatch, rewards, config: SFTConfig, train=8, heldout=16, regression=0, run_id="run-1", calls=one_call
) -> Played:
    """One run, or the next driver of it where the directory holds one."""
    monkeypatch.setattr(improve, "train", _train)
    monkeypatch.setattr(improve, "verify_in_child", _verify)
    there = (directory / "runs" / run_id).exists()
    run = RunDir(directory / "runs" / run_id, resumed=True) if there else RunDir.create(directory / "runs", run_id, {})
    registry = Registry(run.models)
    if not there:
        registry.import_version(make_model(directory / f"model-{run_id}"))
    said, served = io.StringIO(), []
    tasks = [number_tasks(f"{kind} {i}" for i in range(n)) for kind, n in (("train", train), ("test", heldout), ("general", regression))]

    class Engines:
        def __call__(self, version):
            served.append(version.name)
            return InstantEngine(version)

        async def prepare(self, name):
            pass

    class Trainer:
        def prepare(self):
            pass

    async def drive():
        async with await SQLStore.open(run.path / "store.db") as store:
            proxy = LLMProxy(store)
            await proxy.start()
            worker = asyncio.create_task(_work(store, rewards, calls))
            try:
                parts = Parts(run, Board(Console(file=said, width=400)), store, proxy, registry, Engines(), Trainer(), "")
                return await run_sft(parts, config, *tasks)
            finally:
                worker.cancel()
                with suppress(asyncio.CancelledError):
                    await worker
                await proxy.stop()

    with run.lock():
        summary = asyncio.run(drive())
    return Played(summary, run, registry, said.getvalue(), served)


async def _work(store, rewards, calls):
    await store.register_worker("w1", "w", 64)
    while True:
        await asyncio.gather(*(_answer(store, lease, rewards, calls) for lease in await store.claim("w1", limit=64, wait=5)))


async def _answer(store, lease, rewards, calls):
    rollout, version = lease.rollout, lease.resources.resources["main_llm"].checkpoint
    of_attempt = {"rollout_id": rollout.id, "attempt": lease.ref.attempt, "model": version, "checkpoint": version, "latency": 0.1}
    made = [
        Generation(**of_attempt | {"id": f"g-{rollout.id}-{n}", "call_id": f"g-{rollout.id}-{n}", "started_at": n} | call)
        for n, call in enumerate(calls(rollout, version))
    ]
    await store.add_generations(lease.ref, made)
    given = rewards(version, rollout.input, rollout.mode)
    found = given if isinstance(given, dict) else {"reward": given}
    await store.complete(lease.ref, [Reward(name=name, value=float(value)) for name, value in found.items()])


async def _train(job, *, on_progress, log_path, marker, timeout, ahead):
    (job.output_dir / "adapter").mkdir(parents=True)
    (job.output_dir / "adapter" / "adapter_model.safetensors").write_bytes(b"x")
    for name in MODEL:
        (job.output_dir / name).write_bytes((job.parent_dir / name).read_bytes())
    result = TrainResult(
        supervised_tokens=job.expected_supervised_tokens, rows=1, steps=1, epochs=1, losses=[1.0], seconds=0.1, backend="trl", software={},
        device="cpu", dtype="float32", shared_prefix=False, files={},
    )  # fmt: skip
    (job.output_dir / RESULT_FILE).write_text(result.model_dump_json())
    return result


async def _verify(version_dir, *_, **__):
    return Report(version=version_dir.name, checks=(Check(name="played", ok=True, detail=""),))
