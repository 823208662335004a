"""What the store's process says: one JSON object a line with fixed fields where that is asked for, and no secrets in either form."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from storekit import Kit, run

from leyden.errors import LeydenError
from leyden.server import logs
from leyden.server.transaction import Transaction

KEY = "sk-leyden-0a1b2c3d-" + "x1" * 21 + "y"
SECRETS = {
    "a token": (f"refused {KEY}", KEY),
    "a bearer token": ("sent Authorization: Bearer abcdef0123456789abcdef", "abcdef0123456789abcdef"),
    "a password in a URL": ("no answer from postgresql://leyden:hunter2@db.example/leyden", "hunter2"),
}


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """pytest's own handlers."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    for handler in handlers:
        root.removeHandler(handler)  # so that they are not closed
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def said(as_json: bool, verbose: bool = False) -> io.StringIO:
    stream = io.StringIO()
    logs.configure(as_json, verbose, stream)
    return stream


def test_every_line_is_an_object_with_the_same_fields() -> None:
    stream = said(as_json=True)
    log = logging.getLogger("leyden.server.somewhere")
    log.info("not said")
    log.warning("two\nlines, %d%%", 50)
    try:
        raise ZeroDivisionError("nothing")
    except ZeroDivisionError:
        log.exception("it failed")
    logging.getLogger("uvicorn.error").error("of the server")
    logs.LIFE.info("a beginning")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["two\nlines, 50%", "it failed", "of the server", "a beginning"]
    assert all(tuple(line) == logs.FIELDS for line in lines)
    assert [line["level"] for line in lines] == ["warning", "error", "error", "info"]
    assert "ZeroDivisionError: nothing" in lines[1]["error"] and lines[0]["error"] is None
    assert lines[0]["time"].endswith("+00:00")


def test_a_very_long_text_is_cut_at_the_end_that_says_least() -> None:
    stream = said(as_json=True)
    try:
        raise ValueError("x" * 100_000 + " the end")
    except ValueError:
        logging.getLogger("leyden").exception("begin " + "y" * 100_000)
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["message"].startswith("begin y") and line["error"].endswith("the end")
    assert len(stream.getvalue()) < 3 * logs.MAX_TEXT


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("what", SECRETS)
def test_no_secret_is_said_in_a_message_or_a_traceback(what: str, as_json: bool) -> None:
    message, secret = SECRETS[what]
    stream = said(as_json)
    logging.getLogger("leyden").warning(message)
    try:
        raise ValueError(message)
    except ValueError:
        logging.getLogger("leyden").exception("failed")
    assert stream.getvalue().count(message.split()[0]) >= 2 and secret not in stream.getvalue()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_agents_said_is_in_no_traceback(kind: str) -> None:
    stream = said(as_json=False)
    secret = " ".join(["what", "an", "agent", "said"])  # a traceback shows the lines of this file

    def fail(tx: Transaction) -> None:
        tx.conn.execute(text("INSERT INTO no_such_table VALUES (:value)"), {"value": secret})

    async def check(kit: Kit) -> None:
        with pytest.raises((LeydenError, ProgrammingError)):
            await kit.sql._executor.write(fail)

    run(check, kind)
    assert "no_such_table" in stream.getvalue() and secret not in stream.getvalue()


def test_a_store_says_in_json_where_it_listens_and_what_stopped_it(tmp_path: Path) -> None:
    args = ["store", "--port", "0", "--database", str(tmp_path / "store.db"), "--log-format", "json"]
    process = subprocess.Popen([sys.executable, "-m", "leyden", *args], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = json.loads(process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    rest = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert process.wait(60) == 143
    assert first["message"].startswith("listening on http://127.0.0.1:") and first["pid"] == process.pid
    assert [line["message"] for line in rest] == ["stopped by SIGTERM"] and tuple(first) == logs.FIELDS


def test_tasks_that_fail_unseen_are_said_in_the_same_form() -> None:
    stream = said(as_json=True)

    async def fail() -> None:
        raise ZeroDivisionError

    async def go() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "unseen", "exception": ZeroDivisionError("nothing")})

    asyncio.run(go())
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["logger"] == "asyncio" and "ZeroDivisionError" in line["error"]
