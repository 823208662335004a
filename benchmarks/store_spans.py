"""What both sides share and neither is needed for: spans of 1 KB in the forms that both stores take, and what is made of times.

A body of spans is made once and gets new ids at each sending.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

BATCH = 500  # spans in one request: what our runner sends at most
SENDERS = 8  # requests at once, as our runner
_MARK = "deadbeef"  # stands where each sending puts its own number: in every id, and in every text, that no two of them are alike
_NUMBERS = random.Random(7)


def _text(n: int) -> str:
    return f"{_MARK} {n} " + " ".join(f"{_NUMBERS.getrandbits(64):016x}" for _ in range(46))


def json_lines(n: int) -> list[bytes]:
    """``n`` spans as our runner encodes them."""
    return [
        json.dumps({
            "trace_id": f"{_MARK}{n:024x}", "span_id": f"{_MARK}{i:08x}", "name": "chat m",
            "start_ns": 10**18 + i, "end_ns": 10**18 + i + 1000,
            "attributes": {"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": i, "gen_ai.input.messages": _text(i)},
        }).encode()
        for i in range(n)
    ]  # fmt: skip


def otlp_body(n: int, resource: dict[str, str]) -> bytes:
    """The same as one OTLP export in protobuf, from a resource with these attributes. They are raw ids there, so their mark is too."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add()
    for name, value in resource.items():
        spans.resource.attributes.add(key=name).value.string_value = value
    scope = spans.scope_spans.add()
    for i in range(n):
        span = scope.spans.add(
            trace_id=bytes.fromhex(f"{_MARK}{n:024x}"),
            span_id=bytes.fromhex(f"{_MARK}{i:08x}"),
            name="chat m",
            start_time_unix_nano=10**18 + i,
            end_time_unix_nano=10**18 + i + 1000,
        )
        span.attributes.add(key="gen_ai.request.model").value.string_value = "m"
        span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = i
        span.attributes.add(key="gen_ai.input.messages").value.string_value = _text(i)
    return request.SerializeToString()


def renewed(body: bytes, number: int) -> bytes:
    """With ids that no other sending has."""
    mark = f"{number + 1:08x}"
    return body.replace(_MARK.encode(), mark.encode()).replace(bytes.fromhex(_MARK), bytes.fromhex(mark))


async def send_for(seconds: float, senders: int, send: Callable[[int], Awaitable[int]]) -> dict[str, float]:
    """``send(number)``, which returns how many spans it stored, by so many at once and for so long."""
    began = time.perf_counter()
    stored = number = 0

    async def sender() -> None:
        nonlocal stored, number
        while time.perf_counter() - began < seconds:
            number += 1
            n = await send(number)
            stored += n

    await asyncio.gather(*(sender() for _ in range(senders)))
    return {"stored": stored, "per_second": stored / (time.perf_counter() - began)}


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    return {"p50_ms": statistics.median(ordered) * 1e3, "p99_ms": ordered[len(ordered) * 99 // 100] * 1e3}
