"""Killed just before and just after the commit of every operation: before it, nothing has happened; after it, all of it has; and the
client, which asks again, is answered either way and has it done once."""

from __future__ import annotations

import ast
import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
from store_history import Outcome, Witness
from store_invariants import check_invariants
from store_load import drain
from store_process import PATIENCE, StoreProcess, until
from store_room import Room
from store_snapshot import Snapshot, read

import leyden.server
from leyden.server.interface import AttemptEnd
from leyden.server.queries import Prune
from leyden.types import FailureKind, Generation, JSONResource, Lease, NewRollout, Reward, Rollout, RolloutConfig, RunState, Span

ALONE = {"sqlstore._wake_up", "sqlstore._sweep_once", "replicas.notify"}  # what a store does by itself: see the second test
LOCAL = {"attempts.end_many"}  # of a store in the process that uses it: see test_eval_killed.py
PROBES = {"metrics.touch"}  # writes what nobody reads: see test_readiness.py
CLOSING = {"tokens.add", "tokens.revoke"}  # from the first token on a store has no ear for the others here: see test_tokens_killed.py


class Client:
    """Prepares what an operation needs, by other operations than itself."""

    def __init__(self, room: Room, url: str) -> None:
        self.url = url
        self.witness = Witness("client", room.history, url, PATIENCE)
        self.resources = ""
        self._number = room.history.number

    async def ok(self, operation: str, **asked: Any) -> Any:
        event = await self.witness.call(operation, **asked)
        assert event.outcome is Outcome.OK, f"{operation}: {event.error}"
        return event.answer

    def new(self, **fields: Any) -> NewRollout:
        number = self._number()
        config = RolloutConfig(retry_delay=0.0)
        return NewRollout(input=number, idempotency_key=f"k{number}", resources_id=self.resources, config=config, **fields)

    async def rollout(self, **fields: Any) -> Rollout:
        (rollout,) = await self.ok("enqueue", rollouts=[self.new(**fields)])
        assert isinstance(rollout, Rollout)
        return rollout

    async def lease(self, worker: str = "worker") -> Lease:
        """In a queue of its own, so that it is this very one."""
        rollout = await self.rollout(queue=f"q{self._number()}")
        (lease,) = await self.claim(rollout.queue, worker)
        assert isinstance(lease, Lease)
        return lease

    async def claim(self, queue: str, worker: str = "worker") -> Any:
        return await self.ok("claim", **self.claim_of(queue, worker))

    def claim_of(self, queue: str, worker: str = "worker") -> dict[str, Any]:
        request = f"c{self._number()}"
        return {"worker_id": worker, "limit": 1, "wait": 5.0, "lease_seconds": 60.0, "request_id": request, "queues": (queue,)}

    def name(self, prefix: str) -> str:
        return f"{prefix}{self._number()}"


Case = Callable[[Client], Awaitable[tuple[Coroutine[Any, Any, Any], Callable[[Snapshot], object]]]]
CASES: dict[str, Case] = {}


def case(operation: str) -> Callable[[Case], Case]:
    """Registers what prepares ``operation`` and returns the call that makes it, and whether it has been made, by the tables."""

    def register(prepare: Case) -> Case:
        CASES[operation] = prepare
        return prepare

    return register


@case("claims.enqueue")
async def _(client: Client) -> Any:
    new = [client.new(), client.new()]
    keys = {item.idempotency_key for item in new}
    return client.ok("enqueue", rollouts=new), lambda found: keys <= {row.idempotency_key for row in found.rollouts.values()}


@case("rollouts.requeue")
async def _(client: Client) -> Any:
    lease = await client.lease()
    await client.ok("complete", ref=lease.ref, rewards=[])
    call = client.ok("requeue", rollout_ids=[lease.rollout.id], request_id=client.name("rq"))
    return call, lambda found: found.rollouts[lease.rollout.id].state == "queued"


@case("claims.claim")
async def _(client: Client) -> Any:
    rollout = await client.rollout(queue=client.name("q"))
    return client.claim(rollout.queue), lambda found: rollout.id in found.leases


@case("leases.heartbeat")
async def _(client: Client) -> Any:
    lease = await client.lease()
    call = client.ok("heartbeat", worker_id="worker", leases=[lease.ref], lease_seconds=3000.0)
    return call, lambda found: found.leases[lease.rollout.id].expires_at > time.time_ns() // 1000 + 1_000_000_000


@case("attempts.complete")
async def _(client: Client) -> Any:
    lease = await client.lease()
    call = client.ok("complete", ref=lease.ref, rewards=[Reward(value=1.0)])
    return call, lambda found: {row.rollout_id for row in found.rewards} >= {lease.rollout.id} and lease.rollout.id not in found.leases


@case("attempts.end_each")
async def _(client: Client) -> Any:
    lease = await client.lease()
    sent = Span(trace_id=f"e{client._number():031x}", span_id="1" * 16, name="call", start_ns=1, end_ns=2)
    call = client.ok("end_attempts", ends=[AttemptEnd(lease.ref, [Reward(value=1.0)], [sent])])

    def is_made(found: Any) -> bool:
        kept = {row.rollout_id for row in found.rewards} & {row.rollout_id for row in found.spans} >= {lease.rollout.id}
        return kept and lease.rollout.id not in found.leases

    return call, is_made


@case("attempts.fail")
async def _(client: Client) -> Any:
    lease = await client.lease()
    call = client.ok("fail", ref=lease.ref, failure=FailureKind.AGENT, error="broken")
    return call, lambda found: found.rollouts[lease.rollout.id].state == "failed"


@case("attempts.release")
async def _(client: Client) -> Any:
    lease = await client.lease()
    return client.ok("release", ref=lease.ref), lambda found: found.rollouts[lease.rollout.id].released == 1


@case("attempts.cancel")
async def _(client: Client) -> Any:
    lease = await client.lease()
    return client.ok("cancel", rollout_ids=[lease.rollout.id]), lambda found: found.rollouts[lease.rollout.id].state == "cancelled"


@case("attempts.cancel_matching")
async def _(client: Client) -> Any:
    rollout = await client.rollout(group=client.name("g"))
    call = client.ok("cancel", rollout_ids=[], group=rollout.group)
    return call, lambda found: found.rollouts[rollout.id].state == "cancelled"


@case("queues.change")
async def _(client: Client) -> Any:
    name = client.name("q")
    return client.ok("set_queue", name=name, max_running=7), lambda found: name in {row.name for row in found.queues}


@case("spans.add_spans")
async def _(client: Client) -> Any:
    lease = await client.lease()
    number = client._number() + 1
    span = Span(trace_id=f"{number:032x}", span_id=f"{number:016x}", name="call", start_ns=1, end_ns=2, attributes={"text": "long " * 5000})
    return client.ok("add_spans", ref=lease.ref, spans=[span]), lambda found: span.span_id in {row.span_id for row in found.spans}


@case("spans.add_exported")
async def _(client: Client) -> Any:
    number = client._number() + 1
    sent = {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    return export(client.url, sent), lambda found: sent["spanId"] in {row.span_id for row in found.spans}


@case("generations.add_generations")
async def _(client: Client) -> Any:
    ref = (await client.lease()).ref
    generation = Generation(
        id=client.name("g"), call_id="c", rollout_id=ref.rollout_id, attempt=ref.attempt, model="m", started_at=1, latency=0.1
    )
    call = client.ok("add_generations", ref=ref, generations=[generation])
    return call, lambda found: generation.id in {row.id for row in found.generations}


@case("rewards.add_rewards")
async def _(client: Client) -> Any:
    lease = await client.lease()
    call = client.ok("add_rewards", ref=lease.ref, rewards=[Reward(value=0.5)])
    return call, lambda found: lease.rollout.id in {row.rollout_id for row in found.rewards}


@case("rewards.add_scores")
async def _(client: Client) -> Any:
    lease = await client.lease()
    await client.ok("complete", ref=lease.ref, rewards=[])
    call = client.ok("add_scores", rollout_id=lease.rollout.id, attempt=1, rewards=[Reward(value=0.5, source="verifier")])
    return call, lambda found: lease.rollout.id in {row.rollout_id for row in found.rewards}


@case("resources.add")
async def _(client: Client) -> Any:
    key = client.name("r")
    call = client.ok("add_resources", resources={"n": JSONResource(value=key)}, idempotency_key=key)
    return call, lambda found: key in {row.idempotency_key for row in found.resources.values()}


@case("resources.keep")
async def _(client: Client) -> Any:
    made = await client.ok("add_resources", resources={}, lease_seconds=60.0, idempotency_key=client.name("r"))
    until_then = time.time_ns() // 1000 + 1_000_000_000
    call = client.ok("keep_resources", resources_id=made.id, lease_seconds=3000.0)
    return call, lambda found: found.resources[made.id].alive_until > until_then


@case("resources.retire")
async def _(client: Client) -> Any:
    made = await client.ok("add_resources", resources={}, idempotency_key=client.name("r"))
    return client.ok("retire_resources", resources_id=made.id), lambda found: found.resources[made.id].retired_at is not None


@case("workers.register")
async def _(client: Client) -> Any:
    worker = client.name("w")
    call = client.ok("register_worker", worker_id=worker, name=worker, capacity=1)
    return call, lambda found: worker in found.workers


@case("workers.stop")
async def _(client: Client) -> Any:
    worker = client.name("w")
    await client.ok("register_worker", worker_id=worker, name=worker, capacity=1)
    lease = await client.lease(worker)
    return client.ok("stop_worker", worker_id=worker), lambda found: found.rollouts[lease.rollout.id].released == 1


@case("runs.start")
async def _(client: Client) -> Any:
    run = client.name("run")
    return client.ok("start_run", run_id=run, config={}), lambda found: run in found.runs


@case("runs.keep")
async def _(client: Client) -> Any:
    run = await client.ok("start_run", run_id=client.name("run"), config={}, lease_seconds=60.0)
    until_then = time.time_ns() // 1000 + 1_000_000_000
    call = client.ok("keep_run", run_id=run.id, epoch=run.epoch, lease_seconds=3000.0)
    return call, lambda found: found.runs[run.id].alive_until > until_then


@case("runs.finish")
async def _(client: Client) -> Any:
    run = await client.ok("start_run", run_id=client.name("run"), config={})
    call = client.ok("finish_run", run_id=run.id, epoch=run.epoch, state=RunState.SUCCEEDED, summary={"n": 1})
    return call, lambda found: found.runs[run.id].state == "succeeded"


@case("prune.prune")
async def _(client: Client) -> Any:
    """Not in the history, which would miss it."""
    run, queue = client.name("run"), client.name("q")
    (rollout,) = await client.witness.store.enqueue([client.new(run_id=run, queue=queue)])
    await client.witness.store.cancel([rollout.id])
    return client.ok("prune", query=Prune(older_than=0, run_id=run)), lambda found: rollout.id not in found.rollouts


async def export(url: str, span: dict[str, Any]) -> None:
    """As an exporter does: again, until there is an answer."""
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        while True:
            try:
                answer = await client.post(f"{url}/v1/traces", content=body, headers={"content-type": "application/json"})
            except httpx.TransportError:
                await asyncio.sleep(0.05)
                continue
            assert answer.status_code == 200, answer.text
            return


# -- the tests -----------------------------------------------------------------------------------------------------------------


def test_every_operation_of_the_store_is_tried() -> None:
    assert set(CASES) | ALONE | LOCAL | CLOSING | PROBES == written_operations()


def test_before_its_commit_nothing_has_happened_and_after_it_everything(room: Room) -> None:
    moments = [(operation, moment) for moment in ("before-commit", "after-commit") for operation in CASES]

    async def scenario() -> None:
        async with room.store() as store:
            client = Client(room, store.url)
            client.resources = (await client.ok("add_resources", resources={}, idempotency_key="base")).id
            store.kill()
            for number, (operation, moment) in enumerate(moments):
                if number == 0:
                    await store.start(failpoint=f"{operation}:{moment}")
                call, is_made = await CASES[operation](client)
                calling = asyncio.create_task(call)
                await dies(store, calling)
                assert bool(is_made(read(room.database))) == (moment == "after-commit"), f"{operation}, killed {moment}"
                following = ":".join(moments[number + 1]) if number + 1 < len(moments) else ""
                await store.start(failpoint=following)
                await asyncio.wait_for(calling, PATIENCE)
            await drain_queues(store, client)
            await client.witness.close()
            store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


def test_what_a_store_does_by_itself_it_does_again(room: Room, kind: str) -> None:
    """Waking up, sweeping, telling the other replicas: nobody asked for it, and nobody asks again."""

    async def scenario() -> None:
        async with room.store() as store:
            client = Client(room, store.url)
            client.resources = (await client.ok("add_resources", resources={}, idempotency_key="base")).id
            for operation in sorted(ALONE if kind == "postgres" else ALONE - {"replicas.notify"}):
                for moment in ("before-commit", "after-commit"):
                    rollout = await client.rollout(queue=client.name("q"))
                    claim = client.claim_of(rollout.queue) | {"lease_seconds": 0.3}
                    await client.ok("claim", **claim)
                    store.kill()
                    store.launch(failpoint=f"{operation}:{moment}")
                    asking = asyncio.create_task(client.rollout())  # so that there is something to tell
                    await until(lambda: not store.alive, f"{operation} ends the store {moment}", store.said)
                    await store.start()
                    await asking
                    (again,) = await client.claim(rollout.queue)
                    assert again.ref.attempt == 2, "the lease that was lost has been swept"
            await drain_queues(store, client)
            await client.witness.close()
            store.stop()
        check_invariants(room.history, room.database)

    room.run(scenario())


async def dies(store: StoreProcess, calling: asyncio.Task[Any]) -> None:
    """Fails where the call is answered instead."""
    await until(lambda: not store.alive or calling.done(), "the store is killed", store.said)
    assert not store.alive, "the failpoint was not reached"


async def drain_queues(store: StoreProcess, client: Client) -> None:
    await client.ok("register_worker", worker_id="worker", name="worker", capacity=1)
    await client.ok("stop_worker", worker_id="worker")  # hands back what it holds
    names = tuple(queue.name for queue in await client.witness.store.list_queues())
    await drain(store.url, client.witness.history, names)


# -- what there is to try ------------------------------------------------------------------------------------------------------


def written_operations() -> set[str]:
    """The name of every operation that the store's code gives to its executor to write."""
    found: set[str] = set()
    for path in Path(leyden.server.__path__[0]).glob("*.py"):
        module = importlib.import_module(f"leyden.server.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if "_executor.write_bulk" in called:
                    found.add(name_of(module, node.args[1]))
                elif "_executor.write" in called or (path.stem == "replicas" and called == "self._run"):
                    found.add(name_of(module, node.args[0]))
    return found


def name_of(module: Any, argument: ast.expr) -> str:
    """As the executor names it: the module in which it is defined, and its name."""
    assert isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name), ast.unparse(argument)
    if argument.value.id in ("self", "store"):
        return f"{module.__name__.rpartition('.')[2]}.{argument.attr}"
    operation = getattr(getattr(module, argument.value.id), argument.attr)
    return f"{operation.__module__.rpartition('.')[2]}.{operation.__name__}"
