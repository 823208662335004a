"""How the verbs that read a store print: tables for people, plain lines for pipes, JSON for programs."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from leyden.errors import NotFound, UsageError

if TYPE_CHECKING:
    from leyden.server.client import StoreClient

T = TypeVar("T")

DEFAULT_STORE = "http://127.0.0.1:4747"
FORMAT = 1
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhdw])")
LATEST = "@latest"

StoreURL = Annotated[str, typer.Option("--store", envvar="LEYDEN_STORE", help="URL of the store.", metavar="URL")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


class ListsByDefault(TyperGroup):
    """``leyden rollouts --state failed`` is ``leyden rollouts list --state failed``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in ("-h", "--help") or not args[0].startswith("-"))
        return super().parse_args(ctx, args if named else ["list", *args])


def ask_store(url: str, question: Callable[[StoreClient], Awaitable[T]]) -> T:
    import asyncio

    from leyden.server.client import StoreClient

    async def go() -> T:
        async with StoreClient(url) as store:
            return await question(store)

    return asyncio.run(go())


def print_json(**value: Any) -> None:
    print(json.dumps({"format": FORMAT, **value}, indent=2, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """On a terminal a table with its head; elsewhere one line a row, with tabs between and nothing else."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty() or not cells:
        for row in cells:
            print("\t".join(" ".join(cell.split()) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=place == 0, overflow="fold")  # what comes first is an id, to be copied whole
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def say(text: str) -> None:
    typer.echo(text, err=True)


def confirmed(question: str, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"this is asked for first, and there is no terminal: {question}", "say so with --yes")
    return typer.confirm(question, err=True)


def moment(microseconds: int | None) -> str:
    return "" if microseconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(microseconds / 1e6))


def length(seconds: float) -> str:
    """A duration, in two digits and more: 350 ms, 1.2 s, 12 s, 4 min, 3.2 h."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds > 1e-5 else "0 ms"
    if seconds < 10:
        return f"{seconds:.2g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def duration(text: str) -> float:
    """``90s``, ``15m``, ``2h``, ``30d``, ``2w`` in seconds."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no duration", "write it as 90s, 15m, 2h, 30d or 2w")
    return float(match[1]) * UNITS[match[2]]


def instant(text: str | None) -> int | None:
    """A duration before now, or a local time as ISO 8601 has it, in microseconds."""
    if text is None:
        return None
    if _DURATION.fullmatch(text):
        return round((time.time() - duration(text)) * 1e6)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e6)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{text!r} is no time", "write it as 2h (ago), or as 2026-11-30T09:00") from error


async def find_rollout(store: StoreClient, prefix: str) -> str:
    """The id that begins so, or of ``@latest``. Raises ``NotFound``, or ``UsageError`` where several do."""
    hint = "see which there are: leyden rollouts"
    if prefix == LATEST:
        newest = await store.list_rollouts(newest_first=True, limit=1)
        if not newest:
            raise NotFound("there is no rollout yet", "queue some, or see that this is the right store: --store URL")
        return newest[0].id
    check_prefix(prefix, hint)
    found = [rollout.id for rollout in await store.list_rollouts(id_prefix=prefix, limit=4)]
    return only_one("rollout", prefix, found, hint)


def check_prefix(prefix: str, hint: str) -> None:
    if re.fullmatch("[!-~]+", prefix) is None:
        raise UsageError(f"{prefix!r} begins no id", hint)


def only_one(what: str, prefix: str, found: Sequence[str], hint: str) -> str:
    if prefix in found:
        return prefix
    if not found:
        raise NotFound(f"no {what} {prefix}", hint)
    if len(found) > 1:
        more = ", …" if len(found) > 3 else ""
        raise UsageError(f"{prefix} begins several: {', '.join(found[:3])}{more}", "write more of it")
    return found[0]
