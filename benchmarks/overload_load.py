"""Load for a store, in a process of its own: ``python overload_load.py`` reads a job in JSON on stdin and prints what it found.

Whole rollouts: each is queued, claimed, given two spans of 1 KB and completed, in four requests. Closed: each connection runs one after
the other. Open: they begin at a rate, whatever has become of those before; one whose first request is refused is given up, as load that
was shed; what has begun is tried again as ``StoreClient`` does, after the time that a refusal names, until its patience ends. Leases: kept
by beats of many workers. Polls: claims that wait for a queue in which there is nothing. HTTP/1.1 over asyncio's protocols, as cheap as
Python is.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import uvloop

MOST_CONNECTIONS = 6000
PATIENCE = 30.0  # seconds for one answer, and for a request that is refused again and again: those of ``StoreClient``
LEASES_EACH = 16  # of one worker
POLL = 20.0  # seconds that a claim waits


@dataclass
class Job:
    kind: str  # closed, open, leases, polls
    port: int
    seconds: float
    connections: int = 0  # closed
    rate: float = 0.0  # rollouts a second: open
    number: int = 0  # of leases, or of polls
    lease: float = 60.0
    beat_every: float = 15.0


@dataclass
class Found:
    finished: int = 0
    times: list[float] = field(default_factory=list)  # of whole rollouts; of beats
    answers: Counter[str] = field(default_factory=Counter)  # by request and status
    failed: Counter[str] = field(default_factory=Counter)  # what was given up, by why
    each_second: Counter[int] = field(default_factory=Counter)  # finished ones


class Connection(asyncio.Protocol):
    """One request at a time; broken if an answer came to nothing."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._need = 0
        self._answer: asyncio.Future[tuple[int, bytes, bytes]] | None = None
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    async def post(self, request: bytes) -> tuple[int, bytes, bytes]:
        """Status, head and body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._buffer.clear()
        self._need = 0
        self._transport.write(request)  # type: ignore[attr-defined]
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.broken = True
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._need:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._head = bytes(self._buffer[:end]).lower()
            self._need = end + 4 + int(self._head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            self._start = end + 4
        if len(self._buffer) >= self._need and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(self._head[9:12]), self._head, bytes(self._buffer[self._start : self._need])))

    def connection_lost(self, error: Exception | None) -> None:
        self.broken = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("closed by the store"))


class GivenUp(Exception):
    """With why."""


class Load:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.found = Found()
        self._idle: list[Connection] = []
        self._open = 0
        self._text = "word " * 160

    # -- requests ------------------------------------------------------------------------------------------------------

    async def post(self, name: str, path: str, body: Any, patient: bool = True) -> Any:
        """The answer. Raises ``GivenUp``: at once where it is refused and not ``patient``, else after ``PATIENCE``."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (
            path.encode(),
            len(data),
        )
        deadline = time.perf_counter() + PATIENCE
        while True:
            try:
                status, head, content = await self._send(request + data)
            except TimeoutError:
                raise GivenUp(f"{name}: no answer") from None
            except OSError as error:
                raise GivenUp(f"{name}: {type(error).__name__}") from error
            self.found.answers[f"{name} {status}"] += 1
            if status < 300:
                return json.loads(content)
            if status not in (429, 503):
                raise GivenUp(f"{name}: {status} {content[:200]!r}")
            after = head.partition(b"retry-after:")[2].partition(b"\r\n")[0]
            if not after:
                self.found.failed[f"{name}: refused without Retry-After"] += 1
            pause = float(after or 1)
            if not patient or time.perf_counter() + pause > deadline:
                raise GivenUp(f"{name}: refused")
            await asyncio.sleep(pause)

    async def _send(self, request: bytes) -> tuple[int, bytes, bytes]:
        while self._idle:
            lane = self._idle.pop()
            if not lane.broken:
                break
        else:
            if self._open >= MOST_CONNECTIONS:
                raise ConnectionRefusedError
            self._open += 1
            try:
                async with asyncio.timeout(PATIENCE):
                    _, lane = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", self.job.port)
            except BaseException:
                self._open -= 1
                raise
        try:
            async with asyncio.timeout(PATIENCE):
                return await lane.post(request)
        finally:
            if lane.broken:
                self._open -= 1
            else:
                self._idle.append(lane)

    # -- rollouts ------------------------------------------------------------------------------------------------------

    async def rollout(self) -> None:
        began = time.perf_counter()
        try:
            new = {"input": {"question": "What is 12 + 30?", "answer": 42}, "idempotency_key": f"k-{secrets.token_hex(16)}"}
            await self.post("enqueue", "/v1/rollouts", {"rollouts": [new]}, patient=False)
            asked = {"worker_id": f"w-{secrets.token_hex(4)}", "limit": 1, "lease_seconds": self.job.lease, "wait": 1.0}
            leases = await self.post("claim", "/v1/leases/claim", asked | {"request_id": secrets.token_hex(8)})
            if not leases:
                raise GivenUp("claim: nothing")
            ref = leases[0]["ref"]
            await self.post("spans", "/v1/spans", {"ref": ref, "spans": [self._span(), self._span()]})
            await self.post("complete", "/v1/leases/complete", {"ref": ref, "rewards": [{"value": 1.0}]})
        except GivenUp as why:
            self.found.failed[str(why)] += 1
            return
        now = time.perf_counter()
        self.found.finished += 1
        self.found.each_second[int(now - self._began)] += 1
        self.found.times.append(now - began)

    def _span(self) -> dict[str, Any]:
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "policy", "text": self._text}
        ids = {"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8)}
        return {**ids, "name": "chat policy", "start_ns": 1, "end_ns": 2, "attributes": attributes}

    # -- kinds of load -------------------------------------------------------------------------------------------------

    async def closed(self) -> None:
        self._began = time.perf_counter()
        until = self._began + self.job.seconds

        async def one_after_the_other() -> None:
            while time.perf_counter() < until:
                await self.rollout()

        await asyncio.gather(*(one_after_the_other() for _ in range(self.job.connections)))

    async def open(self) -> None:
        self._began = time.perf_counter()
        running: set[asyncio.Task[None]] = set()
        begun = 0
        while (passed := time.perf_counter() - self._began) < self.job.seconds:
            for _ in range(int(passed * self.job.rate) - begun):
                begun += 1
                task = asyncio.create_task(self.rollout())
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(0.005)
        self.found.failed["begun"] = begun
        if running:
            await asyncio.wait(running, timeout=PATIENCE)
        for task in running:
            task.cancel()

    async def leases(self) -> None:
        """Holds ``number`` of them from before it says that it is ready; ``times``: from a beat's first try to its answer."""
        workers = [f"w-{secrets.token_hex(8)}" for _ in range(-(-self.job.number // LEASES_EACH))]
        new = [{"input": 1, "queue": "held", "idempotency_key": f"k-{secrets.token_hex(16)}"} for _ in range(len(workers) * LEASES_EACH)]
        await self.post("enqueue held", "/v1/rollouts", {"rollouts": new})
        held: dict[str, list[dict[str, Any]]] = {}
        for worker in workers:
            await self.post("register", "/v1/workers", {"worker_id": worker, "name": "overload", "capacity": LEASES_EACH})
            asked = {"worker_id": worker, "limit": LEASES_EACH, "lease_seconds": self.job.lease, "queues": ["held"]}
            held[worker] = [lease["ref"] for lease in await self.post("claim held", "/v1/leases/claim", asked)]
        self.found.answers.clear()
        self.found.failed["leases"] = sum(map(len, held.values()))
        print("@ready", flush=True)
        until = time.perf_counter() + self.job.seconds

        async def beat(number: int, worker: str) -> None:
            await asyncio.sleep(self.job.beat_every * number / len(held))
            while (began := time.perf_counter()) < until:
                try:
                    verdicts = await self.post("beat", "/v1/leases/heartbeat", {"worker_id": worker, "leases": held[worker]})
                except GivenUp as why:
                    self.found.failed[str(why)] += 1
                else:
                    self.found.failed["lost"] += sum(verdict != "held" for verdict in verdicts)
                took = time.perf_counter() - began
                self.found.times.append(took)
                await asyncio.sleep(max(0.0, self.job.beat_every - took))

        await asyncio.gather(*(beat(number, worker) for number, worker in enumerate(held)))
        measured = self.found.answers.copy()
        for refs in held.values():  # left to themselves they would be lost in the next part
            await self.post("end held", "/v1/leases/end", {"ends": [{"ref": ref} for ref in refs]})
        self.found.answers = measured

    async def polls(self) -> None:
        until = time.perf_counter() + self.job.seconds
        waiting = 0

        async def poll() -> None:
            nonlocal waiting
            worker = f"w-{secrets.token_hex(8)}"
            while (left := until - time.perf_counter()) > 0:
                waiting += 1
                if waiting == self.job.number:
                    print("@ready", flush=True)
                asked = {"worker_id": worker, "wait": min(POLL, left), "queues": ["idle"], "request_id": secrets.token_hex(8)}
                began = time.perf_counter()
                try:
                    self.found.finished += len(await self.post("poll", "/v1/leases/claim", asked))
                except GivenUp as why:
                    self.found.failed[str(why)] += 1
                self.found.times.append(time.perf_counter() - began - min(POLL, left))  # later than it asked for

        await asyncio.gather(*(poll() for _ in range(self.job.number)))


async def main(job: Job) -> dict[str, Any]:
    load = Load(job)
    spent, began = time.process_time(), time.perf_counter()
    await getattr(load, job.kind)()
    found = load.found
    times = sorted(found.times) or [0.0]
    return {
        "finished": found.finished,
        "per_second": found.finished / job.seconds,
        "p50": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "worst": times[-1],
        "answers": dict(sorted(found.answers.items())),
        "failed": dict(sorted(found.failed.items())),
        "each_second": [found.each_second[second] for second in range(int(job.seconds))],
        "cores": (time.process_time() - spent) / (time.perf_counter() - began),
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(Job(**json.loads(sys.stdin.readline()))))))
