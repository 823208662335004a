"""A port held by a stranger whose ``/health`` answers 200: every server of ours refuses it, and names who holds it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leyden.doctor.finding import Outcome
from leyden.doctor.ports import check_port
from leyden.doctor.stores import check_store
from leyden.errors import UsageError
from leyden.models.engine import EmbeddedEngine
from leyden.process import find_by_marker, new_marker
from leyden.proxy import LLMProxy
from leyden.server.client import StoreClient
from leyden.server.serving import serve
from leyden.server.sqlstore import SQLStore

Stranger = tuple[int, int]


def refused(stranger: Stranger, start: Callable[[int], Coroutine[Any, Any, Any]]) -> None:
    port, pid = stranger
    with pytest.raises(UsageError) as caught:
        asyncio.run(start(port))
    assert re.fullmatch(rf"port {port} is taken by \S+ \(pid {pid}\)", caught.value.message)
    assert "choose another" in str(caught.value.hint)


def test_the_store_refuses_and_leaves_no_database(stranger: Stranger, tmp_path: Path) -> None:
    refused(stranger, lambda port: serve("127.0.0.1", port, tmp_path / "s.db"))
    assert list(tmp_path.iterdir()) == []


def test_the_proxy_refuses(stranger: Stranger) -> None:
    async def start(port: int) -> None:
        async with await SQLStore.open() as store:
            await LLMProxy(store, port=port).start()

    refused(stranger, start)


def test_the_embedded_engine_refuses_and_starts_nothing(stranger: Stranger, make_model: Callable[..., Path], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    model, marker = make_model(), new_marker()
    refused(stranger, lambda port: EmbeddedEngine(model, port=port, log_path=tmp_path / "log", marker=marker).start())
    assert not (tmp_path / "log").exists() and not find_by_marker(marker)


@pytest.mark.parametrize("verb", ["store", "serve"])
def test_on_the_command_line_it_is_two_lines(stranger: Stranger, make_model: Callable[..., Path], tmp_path: Path, verb: str) -> None:
    port, pid = stranger
    args = ["serve", str(make_model())] if verb == "serve" else ["store", "--database", str(tmp_path / "s.db")]
    command = [sys.executable, "-m", "leyden", *args, "--port", str(port)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    error, hint = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert error.startswith(f"error: port {port} is taken by ") and error.endswith(f"(pid {pid})")
    assert hint.startswith("hint: stop it, or choose another")


def test_a_store_s_client_does_not_take_a_stranger_for_its_store(stranger: Stranger) -> None:
    async def ask(port: int) -> None:
        async with StoreClient(f"http://127.0.0.1:{port}") as store:
            await store.list_runs(limit=1)

    with pytest.raises(UsageError, match=rf"what answers at http://127\.0\.0\.1:{stranger[0]} is not a store"):
        asyncio.run(ask(stranger[0]))


def test_the_doctor_names_the_holder_and_does_not_take_it_for_a_store(stranger: Stranger) -> None:
    port, pid = stranger
    usual, wanted = check_port(port), check_port(port, wanted=True)
    assert (usual.outcome, wanted.outcome) == (Outcome.WARNING, Outcome.PROBLEM)
    assert f"(pid {pid})" in wanted.detail and wanted.fix
    at_url = check_store(f"http://127.0.0.1:{port}")
    assert at_url.outcome is Outcome.PROBLEM and "is not a store of Leyden" in at_url.detail
