"""Requests of every shape to a store that asks for a token: none gets past the door without one, and none fails behind it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from storekit import open_kit, task

from leyden.server.access import need_of
from leyden.server.app import routes
from leyden.server.openapi import make_document
from leyden.server.tokens import Scope, mint

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
EXAMPLES = 1  # of each route; ``test_openapi_document`` tries more, without tokens


@dataclass(frozen=True)
class Served:
    url: str
    admin: str
    nobody: str  # a token that was revoked
    session: requests.Session


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A store with two tokens, in a loop of its own."""
    ready: list[Served] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with open_kit("http-sqlite") as kit:
            await kit.sql.enqueue([task(n) for n in range(20)])
            (admin, shown), (nobody, revoked) = mint("admin", (Scope.ADMIN,)), mint("nobody", (Scope.ADMIN,))
            await kit.sql.add_token(admin)
            await kit.sql.add_token(nobody)
            await kit.sql.revoke_token(nobody.id)
            assert kit.url is not None
            session = requests.Session()
            session.trust_env = False
            ready.append(Served(kit.url, shown, revoked, session))
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield ready[0]
    stop.set()
    thread.join()


schema = schemathesis.openapi.from_dict(make_document(routes(), "test"))


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")  # of schemathesis' own strategies
@schema.parametrize()
@settings(phases=(Phase.generate,), max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_request_gets_in_without_a_token_and_none_fails_with_one(case: schemathesis.Case, served: Served) -> None:
    if isinstance(case.body, dict) and "wait" in case.body:
        case.body["wait"] = 0  # as long as nobody has to wait for it
    if need_of(case.method.upper(), case.path) is not None:
        for headers in ({}, {"authorization": f"Bearer {served.nobody}"}):
            refused = case.call(base_url=served.url, headers=headers, session=served.session, timeout=30)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == ["Bearer"] and b"Traceback" not in refused.content
    admin = {"authorization": f"Bearer {served.admin}"}
    answer = case.call_and_validate(base_url=served.url, headers=admin, session=served.session, checks=CHECKS, timeout=30)
    assert b"Traceback" not in answer.content


@pytest.mark.parametrize(
    "path",
    [
        "/v1//runs",
        "/v1/runs/",
        "//v1/runs",
        "/V1/runs",
        "/v1/../v1/runs",
        "/v1/runs%2f",
        "/health/../v1/runs",
        "/health%2f..%2fv1/runs",
        "/",
    ],
)
def test_odd_paths_are_no_way_around(path: str, served: Served) -> None:
    url = httpx.URL(served.url).copy_with(raw_path=path.encode())
    answer = httpx.get(url, trust_env=False, timeout=60)
    assert answer.status_code == 401, answer.text
    assert need_of("GET", path) is not None
