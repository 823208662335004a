"""Tokens: made once, kept as hashes, revoked for good; the same on every database."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from storekit import Kit, make_span, new_postgres_database, open_kit, run, task

from leyden.errors import Conflict, Forbidden, NotFound, Unauthorized, UsageError
from leyden.server import access, serving
from leyden.server.client import StoreClient
from leyden.server.interface import TOKEN
from leyden.server.operations import tokens as token_ops
from leyden.server.serving import listening, serve
from leyden.server.sqlstore import SQLStore
from leyden.server.tokens import Scope, hash_of, id_in, mint
from leyden.server.tokenstore import in_database, tokens_of


def test_a_token_is_256_random_bits_with_its_id_in_it() -> None:
    minted = [mint("ci", (Scope.READ,)) for _ in range(100)]
    assert len({text for _, text in minted}) == len({text[-43:] for _, text in minted}) == 100
    for new, text in minted:
        assert id_in(text) == new.id and new.hash == hash_of(text) and len(text.rpartition(f"{new.id}-")[2]) == 43
        assert text[-20:] not in repr(new)
    assert [id_in(text) for text in ("", "sk-leyden-", minted[0][1] + "x", minted[0][1].upper(), "é" * 43)] == [None] * 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_tokens_are_made_listed_and_revoked(kind: str) -> None:
    async def check(kit: Kit) -> None:
        first, second = (mint(name, scopes)[0] for name, scopes in (("ci", (Scope.READ, Scope.ENQUEUE)), ("ops", (Scope.ADMIN,))))
        made = await kit.sql.add_token(first)
        assert (made.name, made.scopes, made.revoked_at) == ("ci", (Scope.ENQUEUE, Scope.READ), None)
        assert await kit.sql.add_token(first) == made, "an answer that got lost is asked for again"
        with pytest.raises(Conflict):
            await kit.sql.add_token(second.model_copy(update={"id": first.id}))
        kit.clock.advance(1)
        await kit.sql.add_token(second)
        revoked = await kit.sql.revoke_token(first.id)
        assert revoked.revoked_at == kit.clock.now
        kit.clock.advance(1)
        assert await kit.sql.revoke_token(first.id) == revoked
        assert [token.name for token in await kit.sql.list_tokens()] == ["ci", "ops"]
        assert {token.id: token.revoked for token in await kit.sql.stored_tokens()} == {first.id: True, second.id: False}
        with pytest.raises(NotFound):
            await kit.sql.revoke_token("00000000")

    run(check, kind)


@pytest.mark.parametrize("kind", ["http-sqlite", "http-postgres"])
def test_over_http_an_admin_makes_and_revokes_tokens_that_work_at_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "UNKNOWN", 0.0)  # for the admin's own, which is not made over HTTP

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        with pytest.raises(Forbidden, match="first token"):
            await kit.store.add_token(mint("x", (Scope.ADMIN,))[0])  # type: ignore[attr-defined]
        admin, text = mint("admin", (Scope.ADMIN,))
        await kit.sql.add_token(admin)
        async with StoreClient(kit.url, token=text) as store:
            reader, reads = mint("reader", (Scope.READ,))
            token = await store.add_token(reader)
            assert await store.add_token(reader) == token
            async with StoreClient(kit.url, token=reads) as other:
                assert await other.list_runs() == []
                with pytest.raises(Forbidden, match="scope admin"):
                    await other.list_tokens()
                assert (await store.revoke_token(reader.id)).revoked_at is not None
                with pytest.raises(Unauthorized, match="revoked"):
                    await other.list_runs()
            assert {token.id for token in await store.list_tokens()} == {admin.id, reader.id}

    run(check, kind)


def test_the_database_holds_hashes_and_spans_lose_tokens_they_were_sent_with(tmp_path: Path) -> None:
    new, text = mint("ci", (Scope.ADMIN,))

    async def check() -> None:
        async with open_kit("sqlite", tmp_path / "store.db") as kit:
            await kit.sql.add_token(new)
            body = {"said": f"I found {text} in a file", "authorization": f"Bearer {text}"}
            await kit.store.enqueue([task()])
            (lease,) = await kit.store.claim("w")
            await kit.store.add_spans(lease.ref, [make_span(1, attributes=body)])
            assert text not in str(await kit.store.list_spans(lease.ref.rollout_id))

    asyncio.run(check())
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert new.hash.encode() in held and text.encode() not in held and text[-43:].encode() not in held


def test_a_store_of_schema_3_has_no_tokens_yet_and_takes_them(tmp_path: Path) -> None:
    path = tmp_path / "old.db"

    async def check() -> None:
        async with await SQLStore.open(path):
            pass
        with sqlite3.connect(path) as conn:
            conn.executescript("DROP TABLE tokens; PRAGMA user_version = 3")
        conn.close()
        async with await SQLStore.open(path) as store:
            assert await store.list_tokens() == []
            await store.add_token(mint("ci", (Scope.READ,))[0])

    asyncio.run(check())


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_first_token_is_made_in_the_database(database: str, tmp_path: Path) -> None:
    where = str(tmp_path / "new.db") if database == "sqlite" else new_postgres_database()
    new, text = mint("admin", (Scope.ADMIN,))
    assert database == "postgres" or (tokens_of(where) == [] and not Path(where).exists()), "looking makes no file"
    assert in_database(where, token_ops.add, new).id == new.id
    assert [token.id for token in tokens_of(where)] == [new.id]

    async def check() -> None:
        async with await SQLStore.open(where) as store, listening(store) as at:
            if database == "sqlite":
                with pytest.raises(UsageError, match="already open"):
                    in_database(where, token_ops.revoke, new.id)
            async with StoreClient(at.url) as stranger, StoreClient(at.url, token=text) as admin:
                with pytest.raises(Unauthorized):
                    await stranger.list_runs()
                assert await admin.list_runs() == []

    asyncio.run(check())


def test_a_client_takes_its_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    new, text = mint("ci", (Scope.READ,))

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        await kit.sql.add_token(new)
        monkeypatch.setenv(TOKEN, text)
        async with StoreClient(kit.url) as store:
            assert await store.list_runs() == []
        monkeypatch.setenv(TOKEN, f"{text}\n")
        with pytest.raises(UsageError, match="is no token"):
            StoreClient(kit.url)

    run(check, "http-sqlite")


def test_beyond_this_machine_a_store_listens_only_with_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serving, "_is_loopback", lambda host: False)  # of 127.0.0.1 too: the test itself stays on this machine
    path = tmp_path / "store.db"

    async def check() -> None:
        for database in (None, path):
            with pytest.raises(UsageError, match="without a token"):
                await serve("127.0.0.1", 0, database)
        assert not path.exists()
        async with await SQLStore.open(path) as store:
            new, text = mint("ci", (Scope.READ,))
            with pytest.raises(UsageError, match="without a token"):
                async with listening(store):
                    pass
            await store.add_token(new)
            async with listening(store) as at, StoreClient(at.url, token=text) as client:
                assert await client.list_runs() == []
            await store.revoke_token(new.id)
            with pytest.raises(UsageError, match="without a token"):
                async with listening(store):
                    pass

    asyncio.run(check())
