"""What a request may ask for and may be is bounded, ids are only ids, and nothing that comes over a wire is run."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from storekit import Kit, run

import leyden
from leyden.server.client import StoreClient

SOURCES = sorted(Path(leyden.__path__[0]).rglob("*.py"))
UNPICKLERS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


TOO_MUCH: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/rollouts/query", {"limit": 10_001}, "limit"),
    ("/v1/spans/query", {"limit": 10_001}, "limit"),
    ("/v1/traces/query", {"limit": 1_001}, "limit"),
    ("/v1/rollouts", {"rollouts": [{"input": 1}] * 10_001}, "rollouts"),
    ("/v1/leases/claim", {"worker_id": "w", "limit": 513}, "limit"),
    ("/v1/leases/claim", {"worker_id": "w", "wait": 21}, "wait"),
    ("/v1/leases/claim", {"worker_id": "w", "queues": ["q"] * 65}, "queues"),
    ("/v1/leases/claim", {"worker_id": "../w"}, "worker_id"),
    ("/v1/leases/heartbeat", {"worker_id": "w", "leases": [{"rollout_id": "x", "attempt": 1, "token": 1}] * 10_001}, "leases"),
    ("/v1/leases/end", {"ends": [{"ref": {"rollout_id": "x", "attempt": 1, "token": 1}}] * 513}, "ends"),
    ("/v1/rollouts/wait", {"ids": [], "wait": 21}, "wait"),
    ("/v1/rollouts/wait", {"ids": ["x"] * 100_001}, "ids"),
    ("/v1/rollouts/query", {"ids": ["x"] * 100_001}, "ids"),
    ("/v1/rollouts/cancel", {"rollout_ids": ["x"] * 100_001}, "rollout_ids"),
    ("/v1/rollouts/requeue", {"rollout_ids": ["x"] * 100_001}, "rollout_ids"),
    ("/v1/rewards/query", {"rollout_ids": ["x"] * 100_001}, "rollout_ids"),
    ("/v1/generations/query", {"rollout_ids": ["x"] * 100_001}, "rollout_ids"),
    ("/v1/audits/query", {"rollout_ids": ["x"] * 100_001}, "rollout_ids"),
    ("/v1/tokens", {"id": "../../..", "name": "x", "scopes": ["read"], "hash": "0" * 64}, "id"),
    ("/v1/tokens", {"id": "0" * 8, "name": "x", "scopes": ["root"], "hash": "0" * 64}, "scopes"),
]


def test_what_one_request_asks_for_is_bounded() -> None:
    async def check(kit: Kit) -> None:
        assert kit.url is not None
        async with httpx.AsyncClient(base_url=kit.url, trust_env=False, timeout=60) as http:
            for path, body, field in TOO_MUCH:
                answer = await http.post(path, json=body)
                assert answer.status_code == 422 and field in answer.json()["error"]["message"], answer.text

    run(check, "http-sqlite")


def test_an_id_is_never_a_path(tmp_path: Path) -> None:
    async def check(kit: Kit) -> None:
        store = kit.store
        assert isinstance(store, StoreClient)
        for name in ("../../escape", "..", "/etc/passwd", "a/b", "a\\b", "a\0b"):
            for call in (
                partial(store.start_run, name, {}),
                partial(store.set_queue, name, paused=True),
                partial(store.register_worker, name, "w", 1),
                partial(store.get_rollout, name),
                partial(store.get_resources, name),
                partial(store.stop_worker, name),
                partial(store.revoke_token, name),
            ):
                with pytest.raises(leyden.LeydenError):
                    await call()

    directory = tmp_path / "in" / "side"
    directory.mkdir(parents=True)
    run(check, "http-sqlite", path=directory / "store.db")
    made = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert made <= {"store.db", "store.db.lock", "store.db-wal", "store.db-shm"}


def test_nothing_unpickles_or_evaluates() -> None:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not UNPICKLERS & {module.partition(".")[0] for module in modules}, where
            if isinstance(node, ast.Call):
                func = node.func
                assert not (isinstance(func, ast.Name) and func.id in ("eval", "exec")), where
                if isinstance(func, ast.Attribute) and func.attr in ("load", "system"):
                    assert ast.unparse(func) not in ("torch.load", "os.system"), where


def test_a_database_is_its_owners_alone(tmp_path: Path) -> None:
    def modes() -> dict[str, int]:
        return {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}

    async def check(kit: Kit) -> None:
        await kit.store.set_queue("q", paused=True)  # so that there is a log
        assert modes() == {"store.db": 0, "store.db-wal": 0, "store.db-shm": 0, "store.db.lock": 0}

    run(check, "sqlite", path=tmp_path / "store.db")
