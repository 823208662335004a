"""Calls from many connections at once, timed: ``python proxy_load.py`` reads a job in JSON on stdin and prints what it found.

Raw HTTP/1.1 over asyncio's protocols, each answer read to its end and no further: as cheap as Python is.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import dataclass, field

import uvloop


@dataclass
class Job:
    port: int
    doors: list[tuple[str, str]]  # a path and an API key for each attempt; connections take the next with each ``calls_each`` calls
    connections: int
    prompt: int  # bytes
    stream: bool
    seconds: float = 0.0
    calls: int = 0  # or so many, however long they take
    calls_each: int = 1_000_000
    warm: int = 0  # calls of each connection before the clock starts
    pid: int = 0  # whose memory is looked at, 20 times in all


@dataclass
class Found:
    times: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    errors: int = 0
    example: str = ""
    memory: list[tuple[int, int]] = field(default_factory=list)  # calls so far, bytes


class Caller(asyncio.Protocol):
    """One connection, one call after the other."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._left = run.job.warm
        self._count = 0
        self._buffer = bytearray()
        self._need = -1  # bytes of the whole answer; -1: not known, -2: chunked
        self._body = 0
        self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._left:
            self._send()
        else:
            self._run.warmed(self)

    def _send(self) -> None:
        self._buffer.clear()
        self._need, self._first = -1, 0.0
        data = self._run.request(self._count)
        self._count += 1
        self._started = time.perf_counter()
        self._transport.write(data)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._need == -1:
            head = self._buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            self._body = head + 4
            length = [line[15:] for line in bytes(self._buffer[:head]).lower().split(b"\r\n") if line.startswith(b"content-length:")]
            self._need = self._body + int(length[0]) if length else -2
        if not self._first and len(self._buffer) > self._body:
            self._first = time.perf_counter()
        if len(self._buffer) >= self._need >= 0 or (self._need == -2 and self._buffer.endswith(b"\r\n0\r\n\r\n")):
            self._done()

    def _done(self) -> None:
        now = time.perf_counter()
        if self._left:
            self._left -= 1
            if not self._left:
                self._run.warmed(self)
                return
        elif not self._run.finished(now - self._started, self._first - self._started, self._buffer):
            return
        self._send()

    def go(self) -> None:
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        self._run.lost(str(error))


class Run:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.found = Found()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready: list[Caller] = []
        self._doors = iter(range(10**9))
        self._open = job.connections
        self._sent = 0
        content = "x" * (job.prompt - 200)
        body = {"model": "policy", "messages": [{"role": "system", "content": content}, {"role": "user", "content": "0" * 12}]}
        self._raw = json.dumps(body | ({"stream": True} if job.stream else {}), separators=(",", ":")).encode()
        self._cut = self._raw.index(b"0" * 12)
        self._step = max(1, job.calls // 20)

    def request(self, _: int) -> bytes:
        """Each one's last message is its own."""
        path, key = self.job.doors[(self._sent // self.job.calls_each if self.job.calls else self._sent) % len(self.job.doors)]
        self._sent += 1
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer {key}\r\n"
        head += f"content-length: {len(self._raw)}\r\n\r\n"
        return b"".join((head.encode(), self._raw[: self._cut], b"%012d" % self._sent, self._raw[self._cut + 12 :]))

    def warmed(self, caller: Caller) -> None:
        self._ready.append(caller)
        if len(self._ready) == self.job.connections:
            self.start()

    def start(self) -> None:
        self.started, self.cpu = time.perf_counter(), time.process_time()
        self.until = self.started + self.job.seconds if self.job.seconds else float("inf")
        for caller in self._ready:
            caller.go()

    def finished(self, took: float, first: float, answer: bytes | bytearray) -> bool:
        """Whether there is another call to make."""
        found, job = self.found, self.job
        if not answer.startswith(b"HTTP/1.1 200") or b"word22" not in answer or (job.stream and b"[DONE]" not in answer):
            found.errors += 1
            found.example = bytes(answer[:600]).decode(errors="replace")
        found.times.append(took)
        found.first.append(first)
        done = len(found.times)
        if job.pid and (done - 1) % self._step == 0:
            found.memory.append((done, resident(job.pid)))
        if time.perf_counter() < self.until and (not job.calls or done + self._open <= job.calls):
            return True
        self._open -= 1
        if not self._open and not self.ended.done():
            self.wall, self.spent = time.perf_counter() - self.started, time.process_time() - self.cpu
            self.ended.set_result(None)
        return False

    def lost(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError(f"a connection was closed: {why}"))


async def main(job: Job) -> dict[str, object]:
    run = Run(job)
    loop = asyncio.get_running_loop()
    for _ in range(job.connections):
        await loop.create_connection(lambda: Caller(run), "127.0.0.1", job.port)
    await run.ended
    found = run.found
    found.times.sort()
    found.first.sort()
    return {
        "calls": len(found.times),
        "errors": found.errors,
        "example": found.example,
        "per_second": len(found.times) / run.wall,
        "p50": found.times[len(found.times) // 2],
        "p99": found.times[len(found.times) * 99 // 100],
        "first_p50": found.first[len(found.first) // 2],
        "first_p99": found.first[len(found.first) * 99 // 100],
        "cores": run.spent / run.wall,
        "memory": found.memory,
    }


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    print(json.dumps(uvloop.run(main(Job(**json.load(sys.stdin))))))
