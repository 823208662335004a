"""The OpenAPI document is true: whatever is sent, the store answers as it says, and never with a 500."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from starlette.routing import Route
from storekit import Kit, make_generation, make_span, open_kit, task

from leyden.server.app import routes
from leyden.server.openapi import make_document
from leyden.types import JSONResource, LeaseRef, Reward

EXAMPLES = 4  # for each operation: the larger bodies take long to think of
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@schemathesis.serializer("application/x-protobuf")
def serialize_bytes(context: object, value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass
class Served:
    url: str
    ref: LeaseRef
    ids: dict[str, str]  # something that is there, for each part of a path
    session: requests.Session


@pytest.fixture(scope="module")
def served() -> Iterator[list[Served]]:
    """A store on each database, with something in it, in a loop of their own. To think of a request costs more than to send it twice."""
    ready: list[Served] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_kit("http-sqlite") as on_sqlite, open_kit("http-postgres") as on_postgres:
            ready.extend([await fill(on_sqlite), await fill(on_postgres)])
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield ready
    stop.set()
    thread.join()


async def fill(kit: Kit) -> Served:
    store = kit.store
    resources = await store.add_resources({"a": JSONResource(value=1)})
    await store.start_run("run", {})
    await store.register_worker("w", "w", 1)
    await store.enqueue([task(n, run_id="run", group="g") for n in range(20)])
    (lease,) = await store.claim("w", 1)
    await store.add_spans(lease.ref, [make_span(1)])
    await store.add_generations(lease.ref, [make_generation(lease.ref, "g1")])
    await store.add_rewards(lease.ref, [Reward(value=1, name="early")])
    ids = {"rollout_id": lease.ref.rollout_id, "resources_id": resources.id, "run_id": "run", "worker_id": "w", "name": "default"}
    assert kit.url is not None
    session = requests.Session()
    session.trust_env = False
    return Served(kit.url, lease.ref, ids, session)


schema = schemathesis.openapi.from_dict(make_document(routes(), "test"))


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # of schemathesis' own strategies
@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_answer_is_as_the_document_says(case: schemathesis.Case, served: list[Served]) -> None:
    about_what_is_there = crc32(str(case.body).encode(errors="replace")) % 2  # otherwise hardly any would get past "no such id"
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0  # as long as nobody has to wait for it
    for each in served:
        if about_what_is_there:
            case.path_parameters.update({name: each.ids.get(name, value) for name, value in case.path_parameters.items()})
            if isinstance(case.body, dict) and "ref" in case.body:
                case.body["ref"] = each.ref.model_dump()
        answer = case.call_and_validate(base_url=each.url, session=each.session, checks=CHECKS, timeout=30)
        assert b"Traceback" not in answer.content


def test_the_document_describes_every_route(served: list[Served]) -> None:
    document = httpx.get(f"{served[0].url}/openapi.json", trust_env=False, timeout=60).json()
    registered = {
        (route.path, method) for route in routes() if isinstance(route, Route) for method in route.methods or () if method != "HEAD"
    }
    described = {(path, method.upper()) for path, item in document["paths"].items() for method in item}
    assert len(registered) > 40 and described == {*registered, *((path, "GET") for path in ("/health", "/ready", "/metrics"))}
    assert document["openapi"] == "3.1.0"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", f"/v1/rollouts/x/attempts/{'9' * 5000}/binding", 422),
        ("GET", "/v1/rollouts/x/attempts/-1/binding", 422),
        ("GET", f"/v1/rollouts/x/attempts/{2**62}/binding", 422),
        ("GET", "/v1/rollouts/x/attempts/999/binding", 404),
        ("GET", "/v1/rollouts/%00", 404),
        ("GET", "/v1/rollouts/%ed%a0%80", 404),
        ("GET", f"/v1/rollouts/{'x' * 10_000}", 404),
        ("GET", f"/v1/rollouts/x/spans?attempt={'9' * 5000}", 422),
        ("GET", f"/v1/rollouts/x/spans?attempt={2**63}", 422),
        ("GET", f"/v1/counts?iteration={10**30}", 422),
        ("GET", "/v1/workers?alive_within=nan", 422),
        ("DELETE", "/v1/rollouts", 405),
    ],
)
def test_odd_ids_and_numbers_are_refused_not_stumbled_over(served: list[Served], method: str, path: str, status: int) -> None:
    for each in served:
        answer = httpx.request(method, f"{each.url}{path}", trust_env=False, timeout=30)
        assert answer.status_code == status, answer.text
        assert set(answer.json()["error"]) == {"code", "message", "hint"}
