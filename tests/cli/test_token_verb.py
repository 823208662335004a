"""``leyden token``: on a database, and through a store that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reading_room import Room

import leyden.cli
from leyden.server import access
from leyden.server.interface import TOKEN
from leyden.server.tokens import Scope, hash_of, id_in, mint
from leyden.server.tokenstore import tokens_of


def leyden_token(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    got = leyden.cli.run(["token", *args])
    out, err = capsys.readouterr()
    assert got == status, err
    assert "Traceback" not in err
    return out, err


def test_a_token_is_printed_once_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--database", str(tmp_path / "store.db"))
    out, err = leyden_token(capsys, "create", "ci", "--scope", "read", "--scope", "enqueue", *at)
    text = out.strip()
    token_id = id_in(text)
    assert token_id is not None and token_id in err and "enqueue, read" in err and text not in err
    out, _ = leyden_token(capsys, "list", *at)
    assert out.split("\t")[:3] == [token_id, "ci", "enqueue read"] and text[-43:] not in out
    said = json.loads(leyden_token(capsys, "create", "ops", "--scope", "admin", "--json", *at)[0])
    assert said["format"] == 1 and id_in(said["secret"]) == said["token"]["id"] and said["token"]["scopes"] == ["admin"]
    leyden_token(capsys, "revoke", token_id[:7], *at)
    listed = json.loads(leyden_token(capsys, "list", "--json", *at)[0])["tokens"]
    assert [(token["name"], token["revoked_at"] is None) for token in listed] == [("ci", False), ("ops", True)]
    assert "hash" not in listed[0] and hash_of(text) not in str(listed)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("create", "ci"), "--scope with one of: enqueue, claim, ingest, read, resources, admin"),
        (("create", "ci", "--scope", "all"), "all"),
        (("create", "no name", "--scope", "read"), "letters, digits, _ and -"),
        (("revoke", "12345678"), "leyden token list"),
        (("revoke", "a b"), "leyden token list"),
    ],
)
def test_wrong_use_is_said_and_changes_nothing(
    args: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "store.db"
    _, err = leyden_token(capsys, *args, "--database", str(path), status=2)
    assert said in err and not path.exists()


def test_a_store_that_runs_is_asked_with_an_admins_token(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "UNKNOWN", 0.0)
    room.leyden("token", "create", "ci", "--scope", "read", "--database", str(room.database), status=2)
    assert "already open" in room.said
    room.about_store("token", "create", "ci", "--scope", "admin", status=4)
    assert "first token" in room.said
    new, text = mint("admin", (Scope.ADMIN,))
    room.do(lambda kit: kit.sql.add_token(new))
    monkeypatch.setenv(TOKEN, text)
    reads = room.about_store("token", "create", "reader", "--scope", "read").strip()
    assert {line.split("\t")[1] for line in room.about_store("token", "list").splitlines()} == {"admin", "reader"}
    monkeypatch.setenv(TOKEN, reads)
    room.about_store("queues", "list")
    room.about_store("token", "list", status=4)
    assert "hint: make one with: leyden token create" in room.said
    monkeypatch.setenv(TOKEN, text)
    room.about_store("token", "revoke", str(id_in(reads)))
    monkeypatch.setenv(TOKEN, reads)
    room.about_store("queues", "list", status=4)
    assert "LEYDEN_TOKEN" in room.said


def test_no_token_at_all_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = leyden_token(capsys, "list", "--database", str(tmp_path / "store.db"))
    assert out == "" and "open" in err and tokens_of(tmp_path / "store.db") == []
