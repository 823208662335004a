"""Who is let in over HTTP: every route, every scope, strangers, and keys of attempts."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx
import pytest
from otlpkit import JSON, partial_success
from starlette.routing import Route
from storekit import make_span, task

from leyden.errors import Unauthorized, Unavailable
from leyden.server import access
from leyden.server.access import NEEDS, Access, need_of
from leyden.server.app import create_app
from leyden.server.sqlstore import SQLStore
from leyden.server.tokens import Scope, StoredToken, mint
from leyden.types import Lease, Reward


@asynccontextmanager
async def opened(
    *scopes: Scope, hosts: frozenset[str] | None = frozenset({"127.0.0.1"})
) -> AsyncIterator[tuple[SQLStore, httpx.AsyncClient, dict[Scope, str]]]:
    """A store with one token for each of ``scopes``, spoken to without a port; and those tokens."""
    async with await SQLStore.open(sweep_every=None) as store:
        texts = {}
        for scope in scopes:
            new, texts[scope] = mint(f"only-{scope}", (scope,))
            await store.add_token(new)
        app = create_app(store, hosts=hosts)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            yield store, http, texts


def run(check: Callable[..., Coroutine[Any, Any, None]], *scopes: Scope, **how: Any) -> None:
    async def go() -> None:
        async with opened(*scopes, **how) as parts:
            await asyncio.wait_for(check(*parts), 60)

    asyncio.run(go())


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def a_lease(store: SQLStore) -> Lease:
    await store.enqueue([task()])
    (lease,) = await store.claim("w")
    return lease


def test_every_route_says_which_scope_it_needs() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        routes = cast(list[Route], create_app(store).routes)
        served = {(method, route.path) for route in routes for method in (route.methods or set()) - {"HEAD"}}
        assert served - NEEDS.keys() == set(), "say in leyden/server/access.py what these need"
        assert NEEDS.keys() - served == set(), "these are gone"
        assert {path for (_, path), need in NEEDS.items() if need is None} <= {"/health", "/ready"}

    run(check)


def test_what_stands_in_no_table_is_for_admins() -> None:
    for method, path in (("GET", "/v1/nothing"), ("DELETE", "/v1/rollouts"), ("POST", "/v1/rollouts/x/y"), ("GET", "/docs")):
        need = need_of(method, path)
        assert need is not None and need.scopes == {Scope.ADMIN}
    assert need_of("HEAD", "/v1/runs/r1") == need_of("GET", "/v1/runs/r1") == NEEDS["GET", "/v1/runs/{run_id}"]


def test_each_route_lets_in_the_scopes_of_the_table_and_no_other() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        for (method, path), need in NEEDS.items():
            if need is None:
                continue
            path = re.sub(r"{\w+}", "1", path)
            body = b'{"older_than": 1e6}' if path == "/v1/prune" else b"{}"
            for scope, text in texts.items():
                answer = await http.request(method, path, content=body, headers=bearer(text))
                assert (answer.status_code == 403) == (scope not in need.scopes), f"{method} {path} with {scope}: {answer.text}"
                assert answer.status_code != 401
            for headers in ({}, bearer(mint("x", (Scope.ADMIN,))[1]), bearer("x" * 43), {"authorization": "Basic eDp4"}):
                answer = await http.request(method, path, content=body, headers=headers)
                assert answer.status_code == 401, f"{method} {path} with {headers}"

    run(check, *Scope)


def test_spans_that_come_with_an_ending_need_the_scope_of_spans() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        both, new = mint("runner", (Scope.CLAIM, Scope.INGEST))
        await store.add_token(both)
        lease = await a_lease(store)
        end = {"ref": lease.ref.model_dump(), "rewards": [{"value": 1.0}]}
        with_spans = {"ends": [{**end, "spans": [make_span(1).model_dump(mode="json")]}]}
        for text, body, status in (
            (texts[Scope.INGEST], {"ends": [end]}, 403),
            (texts[Scope.CLAIM], with_spans, 403),
            (new, with_spans, 200),
            (texts[Scope.CLAIM], {"ends": [end]}, 200),  # the same again, without what it may not say
            (texts[Scope.ADMIN], with_spans, 200),
        ):
            answer = await http.post("/v1/leases/end", json=body, headers=bearer(text))
            assert answer.status_code == status, answer.text
            kept = len(await store.list_spans(lease.ref.rollout_id))
            assert kept == (answer.status_code == 200) and (status == 403 or answer.json() == [None])

    run(check, Scope.CLAIM, Scope.INGEST, Scope.ADMIN)


def test_a_refusal_has_the_shape_of_every_error_and_says_what_to_do() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        stranger = await http.get("/v1/runs")
        assert (stranger.status_code, stranger.headers["www-authenticate"]) == (401, "Bearer")
        refused = await http.get("/v1/runs", headers=bearer(texts[Scope.CLAIM]))
        for answer, code in ((stranger, "unauthorized"), (refused, "forbidden")):
            error = answer.json()["error"]
            assert (set(error), error["code"]) == ({"code", "message", "hint"}, code) and "leyden token create" in error["hint"]
        assert "read" in refused.json()["error"]["message"]

    run(check, Scope.CLAIM)


def test_a_strangers_body_is_not_read_and_no_token_is_ever_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    pieces = []

    async def body() -> AsyncIterator[bytes]:
        pieces.append(b"x" * 1000)
        yield pieces[-1]

    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        assert (await http.post("/v1/rollouts", content=body())).status_code == 401
        assert not pieces
        forged = texts[Scope.READ][:-4] + "AAAA"
        for text, status in ((texts[Scope.READ], 403), (forged, 401)):
            assert (await http.post("/v1/rollouts", content=body(), headers=bearer(text))).status_code == status
        assert not pieces
        assert not [record for record in caplog.records if texts[Scope.READ][-43:-4] in record.getMessage()]

    run(check, Scope.READ)


def test_health_is_everybodys() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        assert (await http.get("/health")).status_code == 200

    run(check, Scope.READ)


def test_a_store_without_tokens_asks_nobody_and_never_opens_again_once_it_had_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "STALE", 0.0)  # what another process does to the database is seen at once

    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        assert [(await http.get("/v1/runs", headers=headers)).status_code for headers in ({}, bearer("whatever"))] == [200, 200]
        new, text = mint("first", (Scope.READ,))
        await store.add_token(new)
        assert [(await http.get("/v1/runs", headers=headers)).status_code for headers in ({}, bearer(text))] == [401, 200]
        await store.revoke_token(new.id)
        assert [(await http.get("/v1/runs", headers=headers)).status_code for headers in ({}, bearer(text))] == [401, 401]

    run(check)


def test_a_store_that_other_machines_reach_asks_even_without_tokens() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        headers = {"host": "store.example"}
        assert (await http.get("/v1/runs", headers=headers)).status_code == 401
        assert (await http.get("/health", headers=headers)).status_code == 200

    run(check, hosts=None)


def test_another_secret_behind_a_known_id_is_refused_after_a_comparison_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bool] = []
    compare = hmac.compare_digest

    def watched(a: str, b: str) -> bool:
        compared.append(compare(a, b))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", watched)

    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        text = texts[Scope.READ]
        forged = text[:-1] + ("A" if text[-1] != "A" else "B")
        assert (await http.get("/v1/runs", headers=bearer(forged))).status_code == 401
        assert (await http.get("/v1/runs", headers=bearer(text))).status_code == 200
        assert compared == [False, True]

    run(check, Scope.READ)


# -- keys of attempts ----------------------------------------------------------------------------------------------------------


def test_an_attempts_key_writes_to_its_own_attempt_and_to_no_other() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        mine, other = await a_lease(store), await a_lease(store)
        span, reward = make_span(1).model_dump(mode="json"), Reward(name="early", value=1.0).model_dump(mode="json")
        for path, what in (("/v1/spans", {"spans": [span]}), ("/v1/rewards", {"rewards": [reward]})):
            for ref, status in ((other.ref, 403), (mine.ref.model_copy(update={"attempt": 2}), 403), (mine.ref, 200)):
                answer = await http.post(path, json={"ref": ref.model_dump(), **what}, headers=bearer(mine.key))
                assert answer.status_code == status, answer.text
        assert len(await store.list_spans(mine.ref.rollout_id)) == 1 and not await store.list_spans(other.ref.rollout_id)
        assert len(await store.list_rewards([mine.ref.rollout_id], 1)) == 1 and not await store.list_rewards([other.ref.rollout_id], 1)

    run(check, Scope.READ)


def test_an_attempts_key_opens_nothing_else() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        lease = await a_lease(store)
        for (method, path), need in NEEDS.items():
            if need is not None and not need.own:
                answer = await http.request(method, re.sub(r"{\w+}", "1", path), content=b"{}", headers=bearer(lease.key))
                assert answer.status_code == 403, f"{method} {path}"
        body = {"ref": lease.ref.model_dump()}
        for verb in ("complete", "fail", "release"):
            assert (await http.post(f"/v1/leases/{verb}", json=body, headers=bearer(lease.key))).status_code == 403

    run(check, Scope.READ)


def exported(number: int, **attributes: Any) -> dict[str, Any]:
    values = [{"key": f"leyden.{name}", "value": {"stringValue": str(value)}} for name, value in attributes.items()]
    return {
        "traceId": f"{number:032x}", "spanId": f"{number:016x}", "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
        "attributes": values,
    }  # fmt: skip


def test_spans_exported_with_an_attempts_key_are_kept_under_it_or_refused() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        mine, other = await a_lease(store), await a_lease(store)
        spans = [
            exported(1),
            exported(2, rollout_id=mine.ref.rollout_id, attempt=1),
            exported(3, rollout_id=other.ref.rollout_id, attempt=1),
        ]
        body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
        answer = await http.post("/v1/traces", json=body, headers={"content-type": JSON, **bearer(mine.key)})
        rejected, why = partial_success(answer)
        assert rejected == 1 and "names another attempt" in why
        assert len(await store.list_spans(mine.ref.rollout_id)) == 2 and not await store.list_spans(other.ref.rollout_id)

    run(check, Scope.READ)


def test_an_exporter_without_a_token_is_told_in_its_own_form() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        for headers, status, code in (({}, 401, 16), (bearer(texts[Scope.READ]), 403, 7)):
            answer = await http.post("/v1/traces", content=b"{}", headers={"content-type": JSON, **headers})
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            raw = await http.post("/v1/traces", content=b"", headers={"content-type": "application/x-protobuf", **headers})
            assert (raw.headers["content-type"], raw.content[:2]) == ("application/x-protobuf", bytes([8, code]))

    run(check, Scope.READ)


def test_spans_exported_with_a_token_name_their_attempts_themselves_or_by_its_key() -> None:
    async def check(store: SQLStore, http: httpx.AsyncClient, texts: dict[Scope, str]) -> None:
        lease = await a_lease(store)
        token = bearer(texts[Scope.INGEST])
        for number, headers in ((1, token), (2, token | {"x-leyden-attempt-key": lease.key})):
            body = {"resourceSpans": [{"scopeSpans": [{"spans": [exported(number)]}]}]}
            answer = await http.post("/v1/traces", json=body, headers={"content-type": JSON, **headers})
            assert partial_success(answer) == (0, "")
        assert [span.trace_id for span in await store.list_spans(lease.ref.rollout_id)] == [f"{2:032x}"]

    run(check, Scope.INGEST)


# -- how the tokens are known --------------------------------------------------------------------------------------------------


class Database:
    """Stands in for a store: counts how often it is read, and may be away."""

    def __init__(self, *tokens: StoredToken) -> None:
        self.tokens = list(tokens)
        self.away = False
        self.reads = 0
        self.looking = self.most = 0  # lookups of keys at once
        self.asked, self.answers = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def stored_tokens(self) -> list[StoredToken]:
        self.reads += 1
        if self.away:
            raise Unavailable("away")
        return list(self.tokens)

    async def attempt_of_key(self, key: str) -> tuple[str, int] | None:
        self.looking += 1
        self.most = max(self.most, self.looking)
        self.asked.release()
        await self.answers.acquire()
        self.looking -= 1
        return None


def stored(text: str, new: Any) -> StoredToken:
    return StoredToken(new.id, new.hash, frozenset(new.scopes), False)


READING = NEEDS["GET", "/v1/runs"]


def test_many_requests_read_the_tokens_once() -> None:
    async def check() -> None:
        assert READING is not None
        new, text = mint("x", (Scope.READ,))
        database = Database(stored(text, new))
        door = Access(database)
        await asyncio.gather(*(door.admit(READING, f"Bearer {text}") for _ in range(100)))
        assert database.reads == 1
        await door.admit(READING, f"bearer  {text} ")
        assert database.reads == 1
        door.forget()
        await door.admit(READING, f"Bearer {text}")
        assert database.reads == 2

    asyncio.run(check())


def test_strangers_who_guess_keys_keep_few_readers_busy() -> None:
    async def check() -> None:
        assert READING is not None
        new, text = mint("x", (Scope.READ,))
        database = Database(stored(text, new))
        door = Access(database)
        guesses = [asyncio.create_task(door.admit(READING, f"Bearer {n:043}")) for n in range(20)]
        for _ in range(20):
            await database.asked.acquire()
            assert database.looking <= access.LOOKUPS
            database.answers.release()
        refused = await asyncio.gather(*guesses, return_exceptions=True)
        assert {type(error) for error in refused} == {Unauthorized} and database.most == access.LOOKUPS
        await door.admit(READING, f"Bearer {text}")

    asyncio.run(check())


def test_a_database_that_is_away_stops_known_tokens_only_when_they_have_grown_old(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        assert READING is not None
        new, text = mint("x", (Scope.READ,))
        database = Database(stored(text, new))
        door = Access(database)
        await door.admit(READING, f"Bearer {text}")
        database.away = True
        monkeypatch.setattr(access, "REFRESH", 0.0)
        assert (await door.admit(READING, f"Bearer {text}")).scopes == {Scope.READ}
        door.forget()
        with pytest.raises(Unavailable):
            await door.admit(READING, f"Bearer {text}")

    asyncio.run(check())
