"""Hostile exports: the store answers without failing, keeps the good spans beside the bad ones, and takes a bounded amount of memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import psutil
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from otlpkit import JSON, PROTOBUF, door, pairs
from sqlalchemy import select
from storekit import Kit, open_kit

from leyden.server.otlp.fields import bytes_field
from leyden.server.schema import spans
from leyden.server.transaction import Transaction

BODIES = 5200
AT_ONCE = 8
MARK = "planted"
ANSWERS = {200, 400, 413, 415}

TEXTS = [
    "",
    "x",
    "a\0b",
    "\0",
    "\ud800",
    "a\udfffb",
    "é" * 50,
    "\u202e",
    "\ufffe",
    "𝔘",
    "'; DROP TABLE spans; --",
    "%s %n",
    "x" * 9000,
    "\x7f\x1b[31m",
]
NUMBERS: list[Any] = [0, 1, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, 10**30, 0.1, -0.0, 1e308, 5e-324]
SPECIAL = ["NaN", "Infinity", "-Infinity", "nan", "1e400", "9" * 5000, "0x10", "1_000", " 1", "١"]
IDS: list[Any] = ["", "0" * 32, "0" * 16, "F" * 32, "g" * 32, "ab", "ab" * 17, "é" * 16, "\0" * 16, 5, None, [], {}, True, "A" * 16]
FIELDS = [
    *("name", "kind", "parentSpanId", "startTimeUnixNano", "endTimeUnixNano", "attributes", "events", "links", "status"),
    *("traceState", "flags", "droppedEventsCount"),
]
RAW_IDS = [b"", bytes(16), bytes(8), b"\xff" * 16, b"\xff" * 8, b"12345", b"x" * 17, b"x" * 100_000]


@cache
def bomb(size: int) -> bytes:
    return gzip.compress(bytes(size << 20))


@dataclass
class Body:
    content: bytes
    headers: dict[str, str]
    planted: list[tuple[str, str]] = field(default_factory=list)  # trace and span ids of good spans that must be stored


class Fuzzer:
    """Body number ``n`` is the same in every run."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.rng = random.Random(n)
        self.planted: list[tuple[str, str]] = []

    def make(self) -> Body:
        kind: Callable[[], Body] = self.rng.choice(
            [self.protobuf, self.protobuf, self.protobuf, self.json, self.json, self.json, self.torn, self.noise, self.headers, self.packed]
        )
        body = kind()
        return body

    def good_ids(self) -> tuple[str, str]:
        ids = f"{self.n + 1:016x}{len(self.planted) + 1:016x}", f"{self.rng.getrandbits(63) | 1:016x}"
        self.planted.append(ids)
        return ids

    # -- Protocol Buffers: framing is right, spans are not ---------------------------------------------------------------

    def protobuf(self) -> Body:
        content = b"".join(bytes_field(1, self._resource_spans()) for _ in range(self.rng.randint(1, 3)))
        return self._sent(content, PROTOBUF)

    def _resource_spans(self) -> bytes:
        resource = b"" if self.rng.random() < 0.3 else bytes_field(1, b"".join(self._attribute() for _ in range(self.rng.randint(0, 3))))
        groups = [self._scope_spans() for _ in range(self.rng.randint(1, 2))]
        extra = [bytes_field(9, b"unknown"), b"\x50\x05"] if self.rng.random() < 0.3 else []
        parts = [resource, *(bytes_field(2, group) for group in groups), *extra]
        self.rng.shuffle(parts)
        return b"".join(parts)

    def _scope_spans(self) -> bytes:
        made = [self._good() if self.rng.random() < 0.4 else self._bad() for _ in range(self.rng.randint(1, 5))]
        scope = bytes_field(1, bytes_field(1, self._text_bytes()))
        return scope + b"".join(bytes_field(2, span) for span in made)

    def _good(self) -> bytes:
        trace_id, span_id = self.good_ids()
        span = WireSpan(trace_id=bytes.fromhex(trace_id), span_id=bytes.fromhex(span_id), name=MARK, attributes=pairs({"mark": self.n}))
        return span.SerializeToString()

    def _bad(self) -> bytes:
        rng = self.rng
        span = bytes_field(1, rng.choice([*RAW_IDS, rng.randbytes(16)])) + bytes_field(2, rng.choice([*RAW_IDS, rng.randbytes(8)]))
        for _ in range(rng.randint(0, 4)):
            span += rng.choice([
                lambda: bytes_field(5, self._text_bytes()),
                lambda: bytes_field(9, self._attribute()),
                lambda: bytes_field(11, bytes_field(2, self._text_bytes()) + bytes_field(3, self._attribute())),
                lambda: bytes_field(13, bytes_field(1, rng.randbytes(3)) + bytes_field(4, self._attribute())),
                lambda: b"\x39" + rng.choice([b"\xff" * 8, bytes(8), rng.randbytes(8)]),
                lambda: b"\x30" + rng.choice([b"\x63", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]),
                lambda: bytes_field(15, bytes_field(2, self._text_bytes()) + b"\x18\x7f"),
                lambda: bytes_field(rng.randint(16, 500), rng.randbytes(5)),
                lambda: rng.randbytes(rng.randint(1, 20)),
            ])()  # fmt: skip
        return span

    def _attribute(self) -> bytes:
        return bytes_field(1, self._text_bytes()) + bytes_field(2, self._value())

    def _value(self) -> bytes:
        rng = self.rng
        match rng.randint(0, 7):
            case 0:
                return bytes_field(1, self._text_bytes())
            case 1:
                return b"\x18" + rng.choice([b"\0", b"\xff" * 9 + b"\x01", b"\xff" * 11])
            case 2:
                return b"\x21" + rng.choice([b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf0\xff", rng.randbytes(8)])
            case 3:
                return bytes_field(7, rng.randbytes(rng.randint(0, 30)))
            case 4:
                depth = rng.choice([1, 3, 40, 60, 200])
                value = bytes_field(1, b"deep")
                for _ in range(depth):
                    value = bytes_field(5, bytes_field(1, value))
                return value
            case 5:
                return bytes_field(6, bytes_field(1, self._attribute() if rng.random() < 0.7 else b"\xff"))
        return rng.randbytes(rng.randint(0, 12))

    def _text_bytes(self) -> bytes:
        if self.rng.random() < 0.3:
            return self.rng.choice([b"\xff\xfe", b"\xc3", b"ok\x80ok", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
        return self.rng.choice(TEXTS).encode("utf-8", "surrogatepass")

    # -- JSON --------------------------------------------------------------------------------------------------------------

    def json(self) -> Body:
        groups = [
            {
                "resource": {"attributes": [self._pair() for _ in range(self.rng.randint(0, 2))]},
                "scopeSpans": [{"scope": {"name": "x"}, "spans": [self._json_good() if self.rng.random() < 0.4 else self._json_bad()
                                                                   for _ in range(self.rng.randint(1, 5))]}],
            }
            for _ in range(self.rng.randint(1, 2))
        ]  # fmt: skip
        if self.rng.random() < 0.2:
            groups.insert(0, self.rng.choice([{"scopeSpans": 5}, {"resource": []}, {"scopeSpans": [5]}, 5, None, [], "x"]))
        content = json.dumps({"resourceSpans": groups, "more": 1}, ensure_ascii=self.rng.random() < 0.5)  # NaN and surrogates as they are
        return self._sent(content.encode("utf-8", "surrogatepass"), JSON)

    def _json_good(self) -> dict[str, Any]:
        trace_id, span_id = self.good_ids()
        return {
            "traceId": trace_id.upper(),
            "spanId": span_id,
            "name": MARK,
            "attributes": [{"key": "mark", "value": {"intValue": self.n}}],
        }

    def _json_bad(self) -> Any:
        rng = self.rng
        if rng.random() < 0.1:
            return self._junk()
        span: dict[str, Any] = {
            "traceId": rng.choice([*IDS, f"{rng.getrandbits(128):032x}"]),
            "spanId": rng.choice([*IDS, f"{rng.getrandbits(64):016x}"]),
        }
        for name in rng.sample(FIELDS, rng.randint(0, 6)):
            span[name] = self._junk() if rng.random() < 0.6 else [self._pair(), {"attributes": [self._pair()], "name": self._junk()}]
        return span

    def _pair(self) -> Any:
        rng = self.rng
        name = rng.choice(["stringValue", "intValue", "doubleValue", "boolValue", "bytesValue", "arrayValue", "kvlistValue", "wat"])
        value: Any = {name: self._junk()}
        if rng.random() < 0.2:
            for _ in range(rng.choice([2, 45, 80])):
                value = {"arrayValue": {"values": [value]}}
        return {"key": rng.choice(TEXTS), "value": value if rng.random() < 0.8 else self._junk()}

    def _junk(self) -> Any:
        return self.rng.choice(
            [*TEXTS, *NUMBERS, *SPECIAL, float("nan"), float("inf"), None, True, [], {}, [[]], {"values": [{}]}, [{"key": 5}]]
        )

    # -- whole bodies ------------------------------------------------------------------------------------------------------

    def torn(self) -> Body:
        """Any body with bytes changed, cut out or doubled: nothing is known about what can still be read."""
        body = self.rng.choice([self.protobuf, self.json])()
        content = bytearray(body.content)
        for _ in range(self.rng.randint(1, 8)):
            at = self.rng.randrange(len(content) + 1)
            content[at : at + self.rng.randint(0, 4)] = self.rng.randbytes(self.rng.randint(0, 4))
        return Body(bytes(content[: self.rng.randint(0, len(content))] if self.rng.random() < 0.3 else content), body.headers)

    def noise(self) -> Body:
        content = self.rng.choice(
            [self.rng.randbytes(self.rng.randint(0, 300)), b"[" * 5000, b'{"resourceSpans":' * 500, b"\x0a" * 999, b"null", b"1e999"]
        )
        return Body(content, {"content-type": self.rng.choice([PROTOBUF, JSON])})

    def headers(self) -> Body:
        body = self.rng.choice([self.protobuf, self.json])()
        odd = self.rng.choice([
            {"content-type": ""}, {"content-type": "text/html"}, {"content-type": JSON + ";charset=utf-16"}, {"content-encoding": "br"},
            {"content-encoding": "gzip, gzip"}, {"content-encoding": "deflate"}, {"authorization": "Bearer " + "x" * 500},
            {"authorization": "Basic eDp4"}, {"x-leyden-attempt-key": "%00"}, {"content-encoding": "identity"}, {"authorization": "Bearer"},
        ])  # fmt: skip
        fine = body.headers["content-type"] == JSON and odd == {"content-type": JSON + ";charset=utf-16"}
        harmless = fine or odd in ({"content-encoding": "identity"}, {"authorization": "Basic eDp4"}, {"authorization": "Bearer"})
        return Body(body.content, body.headers | odd, body.planted if harmless else [])

    def packed(self) -> Body:
        body = self.rng.choice([self.protobuf, self.json])()
        content = gzip.compress(body.content)
        match self.rng.randint(0, 5):
            case 0:
                content = content[: self.rng.randrange(len(content))]
            case 1:
                at = self.rng.randrange(len(content))
                content = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
            case 2:
                content += self.rng.randbytes(5)
            case 3 if self.n % 4 == 0:
                content = bomb(self.rng.choice([20, 65, 80]))
            case _:
                return Body(content, body.headers | {"content-encoding": "gzip"}, body.planted)
        return Body(content, body.headers | {"content-encoding": "gzip"})

    def _sent(self, content: bytes, content_type: str) -> Body:
        return Body(content, {"content-type": content_type}, self.planted)


def go(check: Callable[[Kit], Coroutine[Any, Any, None]], kind: str) -> None:
    """Without ``storekit.run``'s limit: on a busy machine this takes its time."""

    async def opened() -> None:
        async with open_kit(kind) as kit:
            await check(kit)

    asyncio.run(opened())


async def send_all(http: httpx.AsyncClient, numbers: range, planted: set[tuple[str, str]], answers: Counter[int]) -> None:
    for n in numbers:
        body = Fuzzer(n).make()
        answer = await http.post("/v1/traces", content=body.content, headers=body.headers)
        assert answer.status_code in ANSWERS, f"body {n}: {answer.status_code} {answer.content[:300]!r}"
        if body.planted:
            assert answer.status_code == 200, f"body {n} holds good spans: {answer.content[:300]!r}"
        planted |= set(body.planted)
        answers[answer.status_code] += 1


def test_5000_hostile_bodies_cost_no_good_span_and_no_memory() -> None:
    async def check(kit: Kit) -> None:
        planted: set[tuple[str, str]] = set()
        answers: Counter[int] = Counter()
        async with door(kit) as http:
            await send_all(http, range(BODIES, BODIES + 200), set(), Counter())  # warm
            before = psutil.Process().memory_info().rss
            await asyncio.gather(*(send_all(http, range(lane, BODIES, AT_ONCE), planted, answers) for lane in range(AT_ONCE)))
            grown = psutil.Process().memory_info().rss - before
        assert sum(answers.values()) == BODIES and min(answers[status] for status in ANSWERS) > 5, answers
        assert len(planted) > 5000
        assert grown < 300 << 20, f"{grown >> 20} MiB more"

        def kept(tx: Transaction) -> dict[tuple[str, str], bytes]:
            return {(row.trace_id, row.span_id): row.attributes for row in tx.conn.execute(select(spans).where(spans.c.name == MARK))}

        found = await kit.sql._executor.read(kept)
        assert planted <= set(found)
        # Whatever was stored, a database's own JSON can read it.
        assert await kit.sql._executor.read(lambda tx: tx.conn.exec_driver_sql(READABLE).scalar_one()) == 0
        counted = await kit.store.list_rejections()
        assert len(counted) < 40, "reasons are few, however much is refused"

    go(check, "sqlite")


READABLE = """
SELECT count(*) FROM spans WHERE substr(attributes, 1, 1) != x'01' AND NOT json_valid(CAST(attributes AS TEXT))
                              OR substr(events, 1, 1) != x'01' AND NOT json_valid(CAST(events AS TEXT))
"""


def test_hostile_bodies_on_postgres() -> None:
    """The same, fewer: what a driver or PostgreSQL's text refuses would show here."""

    async def check(kit: Kit) -> None:
        planted: set[tuple[str, str]] = set()
        async with door(kit) as http:
            await asyncio.gather(*(send_all(http, range(lane, 400, AT_ONCE), planted, Counter()) for lane in range(AT_ONCE)))

        def kept(tx: Transaction) -> set[tuple[str, str]]:
            return {(row.trace_id, row.span_id) for row in tx.conn.execute(select(spans.c.trace_id, spans.c.span_id))}

        assert planted <= await kit.sql._executor.read(kept)
        as_json = "SELECT count(convert_from(attributes, 'UTF8')::jsonb) FROM spans WHERE get_byte(attributes, 0) != 1"
        assert await kit.sql._executor.read(lambda tx: tx.conn.exec_driver_sql(as_json).scalar_one()) > 0

    go(check, "postgres")


def test_a_request_of_many_groups_is_read_to_its_end() -> None:
    """Groups of one span each, bad ones between."""
    request = ExportTraceServiceRequest()
    for n in range(2000):
        span = request.resource_spans.add().scope_spans.add().spans.add()
        span.trace_id, span.span_id = (n + 1).to_bytes(16), (n + 1).to_bytes(8 if n % 3 else 7)

    async def check(kit: Kit) -> None:
        async with door(kit) as http:
            answer = await http.post("/v1/traces", content=request.SerializeToString(), headers={"content-type": PROTOBUF})
        assert answer.status_code == 200
        count = await kit.sql._executor.read(lambda tx: tx.conn.exec_driver_sql("SELECT count(*) FROM spans").scalar_one())
        assert count == 2000 - 667

    go(check, "sqlite")
