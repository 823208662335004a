"""The store receives what OpenTelemetry's own exporters send: Python's and Node's, in both encodings, packed and not."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from otlpkit import all_spans, claim
from storekit import Kit, run

from leyden.errors import Unavailable
from leyden.server import capture, intake
from leyden.server.operations.fence import attempt_key
from leyden.server.routes import otlp
from leyden.types import LeaseRef, Span

NODE = Path(__file__).parent / "node"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture(params=["http-sqlite", "http-postgres"])
def served(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def key_of(kit: Kit, ref: LeaseRef) -> str:
    return attempt_key(kit.sql._database.secret, ref)


# -- Python ------------------------------------------------------------------------------------------------------------


def send_from_python(url: str, spans: int, resource: dict[str, Any], **options: Any) -> bool:
    """Whether the exporter says that all was delivered."""
    provider = TracerProvider(resource=Resource.create(resource))
    exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", **options)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("python-library", "2.0")
    with tracer.start_as_current_span("root") as root:
        for n in range(spans):
            attributes = {"n": n, "gen_ai.operation.name": "chat", "list": ["a", "é"], "float": 0.5}
            link = Link(root.get_span_context(), {"why": "root"})
            with tracer.start_as_current_span(f"span {n}", kind=SpanKind.CLIENT, attributes=attributes, links=[link]) as span:
                span.add_event("said", {"word": "hello"})
                span.set_status(Status(StatusCode.ERROR, "it broke"))
    done = provider.force_flush(30_000)
    provider.shutdown()
    return done


def check_children(spans: list[Span], count: int, library: str) -> None:
    root, *children = sorted(spans, key=lambda span: (span.parent_id is not None, span.attributes.get("n")))
    assert (root.name, root.parent_id) == ("root", None) and len(children) == count
    for n, span in enumerate(children):
        assert (span.name, span.trace_id, span.parent_id) == (f"span {n}", root.trace_id, root.span_id)
        assert (span.kind, span.status, span.status_message, span.operation) == ("client", "error", "it broke", "chat")
        assert {name: span.attributes[name] for name in ("n", "list", "float")} == {"n": n, "list": ["a", "é"], "float": 0.5}
        assert [(event["name"], event["attributes"]) for event in span.events] == [("said", {"word": "hello"})]
        assert [(link["span_id"], link["attributes"]) for link in span.links] == [(root.span_id, {"why": "root"})]
        assert 0 < span.start_ns <= span.end_ns and span.scope == library and span.resource["service.name"] == "agent"


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip], ids=["plain", "gzip"])
def test_python_exporter(served: str, compression: Compression) -> None:
    async def check(kit: Kit) -> None:
        assert kit.url is not None
        ref = await claim(kit)
        headers = {"x-leyden-attempt-key": key_of(kit, ref)}
        resource = {"service.name": "agent"}
        assert await asyncio.to_thread(send_from_python, kit.url, 700, resource, compression=compression, headers=headers)
        found = await kit.store.list_spans(ref.rollout_id)
        check_children(found, 700, "python-library")
        assert {span.attempt for span in found} == {1} and len(found) == len(await all_spans(kit))

    run(check, served)


def test_python_exporter_repeats_what_a_busy_store_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MAX_HELD", 1 << 20)
    monkeypatch.setattr(intake.random, "randint", lambda low, high: low)
    refuse, answers = otlp._refuse, []

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        with ExitStack() as full:
            full.enter_context(kit.sql.intake.holding())(1 << 20)

            def refuse_once(*args: Any) -> Any:
                answers.append(refuse(*args))
                full.close()  # by the time it comes again there is room
                return answers[-1]

            monkeypatch.setattr(otlp, "_refuse", refuse_once)
            assert await asyncio.to_thread(send_from_python, kit.url, 5, {"service.name": "agent"})
        assert [(answer.status_code, answer.headers["retry-after"]) for answer in answers] == [(429, "1")]
        check_children(await all_spans(kit), 5, "python-library")

    run(check, "http-sqlite")


def test_python_exporter_repeats_what_was_stored_but_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    add_exported, calls = capture.Capture.add_exported, []

    async def lose_the_first_answer(self: Any, *args: Any) -> Any:
        done = await add_exported(self, *args)
        calls.append(done)
        if len(calls) == 1:
            raise Unavailable("the answer is lost")
        return done

    monkeypatch.setattr(capture.Capture, "add_exported", lose_the_first_answer)

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        assert await asyncio.to_thread(send_from_python, kit.url, 5, {"service.name": "agent"})
        assert len(calls) == 2
        check_children(await all_spans(kit), 5, "python-library")

    run(check, "http-sqlite")


# -- Node --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def node_packages(request: pytest.FixtureRequest) -> Path:
    """A directory with the pinned packages and the script, installed once for each lock file."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not on this machine: Node's exporters are not tried")
    lock = (NODE / "package-lock.json").read_bytes()
    home = request.config.cache.mkdir(f"leyden-node-{hashlib.sha256(lock).hexdigest()[:12]}")
    with (home / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # test processes may come together
        if not (home / "installed").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(NODE / name, home / name)
            subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=home, check=True, capture_output=True, timeout=240
            )
            (home / "installed").touch()
    shutil.copy(NODE / "send.mjs", home / "send.mjs")
    return home


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("encoding", ["json", "protobuf"])
def test_node_exporter(node_packages: Path, encoding: str, compression: str) -> None:
    async def check(kit: Kit) -> None:
        ref = await claim(kit)
        asked = {
            "url": f"{kit.url}/v1/traces",
            "encoding": encoding,
            "compression": compression,
            "headers": {"Authorization": f"Bearer {key_of(kit, ref)}"},
            "resource": {"service.name": "agent"},
            "spans": 600,
        }
        node = await asyncio.create_subprocess_exec(
            "node", "send.mjs", json.dumps(asked), cwd=node_packages, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, complaints = await node.communicate()
        assert node.returncode == 0 and not complaints, complaints.decode()
        sent = json.loads(out)
        found = await kit.store.list_spans(ref.rollout_id)
        check_children(found, 600, "node-library")
        assert {span.span_id for span in found} == {sent["root"], *sent["spans"]} and {span.trace_id for span in found} == {sent["trace"]}
        assert found[0].attributes["otel.scope.version"] == "3.1"

    run(check, "http-sqlite")
