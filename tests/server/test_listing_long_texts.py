"""Texts longer than an index can hold are refused, alike on every database."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from storekit import Kit, run, task

from leyden.errors import InvalidRequest
from leyden.types import JSONResource

LONG = "".join(f"{n:x}" for n in range(40_000))  # which no database makes short


@pytest.mark.parametrize("kind", ["http-sqlite", "http-postgres"])
def test_a_text_that_no_index_can_hold_is_refused_with_its_name(kind: str) -> None:
    worker = {"worker_id": "w", "name": "w", "capacity": 1}
    requests: list[tuple[str, dict[str, Any], str]] = [
        ("/v1/rollouts", {"rollouts": [{"input": 1, "group": LONG}]}, "group"),
        ("/v1/rollouts", {"rollouts": [{"input": 1, "episode": {"episode_id": LONG}}]}, "episode_id"),
        ("/v1/resources", {"resources": {}, "idempotency_key": LONG}, "idempotency_key"),
        ("/v1/workers", worker | {"name": LONG}, "name"),
        ("/v1/workers", worker | {"host": LONG}, "host"),
    ]

    async def check(kit: Kit) -> None:
        async with httpx.AsyncClient(base_url=kit.url or "", trust_env=False, timeout=60) as http:
            for path, body, field in requests:
                answer = await http.post(path, json=body)
                assert answer.status_code == 422 and field in answer.json()["error"]["message"], (path, field, answer.content[:200])
        widest = "\U0001f600" * 256
        await kit.store.enqueue([task(group=widest, idempotency_key=widest)])
        await kit.store.add_resources({"a": JSONResource(value=1)}, idempotency_key=widest)
        assert len(await kit.store.list_rollouts(group=widest)) == 1
        assert await kit.store.list_rollouts(group=LONG) == []

    run(check, kind)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_caller_in_this_process_is_told_the_same(kind: str) -> None:
    async def check(kit: Kit) -> None:
        with pytest.raises(InvalidRequest, match="idempotency_key"):
            await kit.store.add_resources({"a": JSONResource(value=1)}, idempotency_key=LONG)

    run(check, kind)
