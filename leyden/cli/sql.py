"""``leyden sql``: one read-only query over the store's views."""

from __future__ import annotations

import csv
import math
import sys
from decimal import Decimal
from typing import Annotated, Any

import typer

from leyden.cli.printing import AsJson, duration, print_json, print_table, say
from leyden.errors import UsageError

DATABASE = "leyden.db"

Database = Annotated[
    str, typer.Option(envvar="LEYDEN_DATABASE", help="The store's SQLite file, or postgresql://…; it may run.", metavar="FILE|URL")
]


def run(
    statement: Annotated[str, typer.Argument(help="For instance: SELECT state, count(*) FROM v_rollouts GROUP BY state", metavar="QUERY")],
    database: Database = DATABASE,
    limit: Annotated[int, typer.Option(help="Rows at most.", min=1, max=1_000_000)] = 1000,
    time: Annotated[str, typer.Option(help="How long it may take.", metavar="TIME")] = "30s",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
) -> None:
    """Run one query over the views (v_rollouts, v_attempts, v_spans, …; docs/sql-views.md). Nothing can be written."""
    from leyden.server.adhoc import ask

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other", "choose one")
    answer = ask(database, statement, limit, duration(time))
    rows = [tuple(map(_plain, row)) for row in answer.rows]
    if as_json:
        print_json(columns=answer.columns, rows=[tuple(map(_finite, row)) for row in rows], more=answer.more)
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(rows)
    else:
        print_table(answer.columns, rows)
    if answer.more:
        say(f"the first {limit} rows; see more with --limit N")


def _finite(value: Any) -> Any:
    """JSON has neither infinity nor what is no number."""
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float | Decimal) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
