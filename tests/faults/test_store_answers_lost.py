"""Answers that get lost after the commit: the client asks again, is told the same, and nothing is there twice."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any, cast

import httpx
from starlette.routing import Route
from store_history import Outcome, Witness
from store_invariants import check_invariants
from store_process import PATIENCE
from store_relay import Relay, Request
from store_room import SCALE, Room

from leyden.server.app import create_app
from leyden.server.interface import AttemptEnd
from leyden.server.queries import Prune
from leyden.server.sqlstore import SQLStore
from leyden.types import FailureKind, Generation, JSONResource, Lease, LeaseRef, NewRollout, Reward, RolloutConfig, RunState, Span

ROUNDS = 12  # on each database; a round loses an answer of every route that changes something, of some more than once
AT_ONCE = 4
READING = {  # POST only because what is asked does not fit into a path
    "list_rollouts",
    "wait_rollouts",
    "list_generations",
    "list_rewards",
    "query_spans",
    "list_traces",
    "list_audits",
    "resolve_key",
}
CLOSING = {"add_token", "revoke_token"}  # from the first token on a store has no ear for the others here: see test_tokens_killed.py
PASSING = {"timeout_seconds", "last_seen_at", "counts", "running"}  # what may be another when the answer is given again
COUNTS = {"cancel", "add_spans"}  # how many were changed by this very request: none, by the second


def test_nothing_is_doubled_on_any_route(room: Room) -> None:
    async def scenario() -> None:
        async with room.store() as store, Relay(store.port) as relay:
            witness = Witness("client", room.history, relay.url, PATIENCE)
            for start in range(0, ROUNDS * SCALE, AT_ONCE):
                await asyncio.gather(*(play_round(witness, relay.url, number) for number in range(start, start + AT_ONCE)))
            await witness.call("prune", query=Prune(older_than=10 * 365 * 86_400))
            refused = [event for event in room.history.events if event.outcome is not Outcome.OK]
            assert not refused, refused[:3]
            await witness.close()
            routes = await mutating_routes()
            lost = {name_of(request, routes) for request in relay.lost}
            assert lost == set(routes), "routes that change something and are not tried here, or the other way round"
            for request, answer in relay.lost.items():
                assert request in relay.seen, f"{request} was not asked again"
                assert_same(name_of(request, routes), json.loads(answer), json.loads(relay.seen[request]))
            assert len(relay.lost) >= 250 * SCALE
            store.stop()
        found = check_invariants(room.history, room.database, drained=False)
        assert len(found.rollouts) == ROUNDS * SCALE * 7
        assert sum(row.rollout_id is None for row in found.spans) == ROUNDS * SCALE, "what an exporter sent"

    room.run(scenario())


async def play_round(witness: Witness, url: str, number: int) -> None:
    """Everything that changes something, once or more."""

    async def ok(operation: str, **asked: Any) -> Any:
        event = await witness.call(operation, **asked)
        assert event.outcome is Outcome.OK, event
        return event.answer

    async def claim(limit: int) -> list[Lease]:
        request = f"c{witness.history.number()}"
        leases = await ok("claim", worker_id=worker, limit=limit, wait=5.0, lease_seconds=60.0, request_id=request, queues=(queue,))
        assert len(leases) == limit
        return list(leases)

    worker, queue, run = f"worker{number}", f"queue{number}", f"run{number}"
    epoch = (await ok("start_run", run_id=run, config={"n": number})).epoch
    await ok("keep_run", run_id=run, epoch=epoch)
    resources = await ok("add_resources", resources={"n": JSONResource(value=number)}, lease_seconds=60.0, idempotency_key=f"r{number}")
    await ok("keep_resources", resources_id=resources.id, lease_seconds=60.0)
    await ok("set_queue", name=queue, max_running=5)
    config = RolloutConfig(retry_delay=0.0)
    new = [
        NewRollout(
            input=f"{number}-{i}", queue=queue, run_id=run, resources_id=resources.id, config=config, idempotency_key=f"k{number}-{i}"
        )
        for i in range(7)
    ]
    rollouts = await ok("enqueue", rollouts=new)
    await ok("register_worker", worker_id=worker, name=worker, capacity=5)
    first, second, third, fourth, fifth = await claim(5)
    await ok("heartbeat", worker_id=worker, leases=[lease.ref for lease in (first, second, third, fourth, fifth)])
    await ok("add_spans", ref=first.ref, spans=[span(number, i) for i in range(3)])
    await ok("add_generations", ref=first.ref, generations=[generation(first.ref, i) for i in range(2)])
    await ok("add_rewards", ref=first.ref, rewards=[Reward(name="early", value=0.5, position="p1")])
    await ok("complete", ref=first.ref, rewards=[Reward(value=1.0), Reward(name="other", value=2.0)])
    await ok("add_scores", rollout_id=first.rollout.id, attempt=1, rewards=[Reward(value=0.5, source="verifier")])
    ended = AttemptEnd(fifth.ref, [Reward(value=1.0)], [span(number, i) for i in range(3, 5)])
    await ok("end_attempts", ends=[ended])
    await ok("fail", ref=second.ref, failure=FailureKind.TOOL, error="broken")
    await ok("release", ref=third.ref)
    await ok("stop_worker", worker_id=worker)  # hands the fourth back
    await ok("cancel", rollout_ids=[rollouts[6].id])
    await ok("cancel", rollout_ids=[rollouts[5].id, rollouts[6].id])
    await ok("requeue", rollout_ids=[rollouts[6].id], request_id=f"q{number}")
    await send_otlp(url, number)
    await ok("retire_resources", resources_id=resources.id)
    await ok("finish_run", run_id=run, epoch=epoch, state=RunState.SUCCEEDED, summary={"n": number})


async def send_otlp(url: str, number: int) -> None:
    """As an exporter does: the same body again where no answer came."""
    sent = {"traceId": f"{number + 1:032x}", "spanId": f"{number + 1:016x}", "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [sent]}]}]}).encode()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for _ in range(2):
            try:
                answer = await client.post(f"{url}/v1/traces", content=body, headers={"content-type": "application/json"})
            except httpx.TransportError:
                continue
            assert answer.status_code == 200 and "rejectedSpans" not in answer.text
            return
    raise AssertionError("the export got no answer twice")


def span(number: int, i: int) -> Span:
    return Span(trace_id=f"b{number:031x}", span_id=f"{i + 1:016x}", name="call", start_ns=1, end_ns=2)


def generation(ref: LeaseRef, i: int) -> Generation:
    return Generation(
        id=f"{ref.rollout_id}-{i}", call_id="call", rollout_id=ref.rollout_id, attempt=ref.attempt, model="m", started_at=1, latency=0.1
    )


# -- the routes ----------------------------------------------------------------------------------------------------------------


async def mutating_routes() -> dict[str, re.Pattern[str]]:
    """Name → the paths of every route that changes something."""
    async with await SQLStore.open() as store:
        routes = cast(list[Route], create_app(store).routes)
    changing = [route for route in routes if (route.methods or set()) - {"GET", "HEAD"} and route.name not in READING | CLOSING]
    return {route.name: route.path_regex for route in changing}


def name_of(request: Request, routes: dict[str, re.Pattern[str]]) -> str:
    return next((name for name, paths in routes.items() if paths.match(request.path)), "reading")


def assert_same(name: str, first: Any, second: Any) -> None:
    if name in COUNTS:
        assert second == 0 or first == second
    else:
        assert without_passing(first) == without_passing(second), name


def without_passing(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_passing(item) for key, item in value.items() if key not in PASSING}
    return [without_passing(item) for item in value] if isinstance(value, list) else value
