"""``leyden doctor``: what on this machine would stop or spoil a run, and what to type about it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from leyden.doctor.finding import Finding

FORMAT = 1


def run(
    engine_python: Annotated[str | None, typer.Option(envvar="LEYDEN_ENGINE_PYTHON", help="The interpreter that has vLLM.")] = None,
    engine_command: Annotated[str | None, typer.Option(envvar="LEYDEN_ENGINE_COMMAND", help="Instead: the command to start it.")] = None,
    train_python: Annotated[str | None, typer.Option(envvar="LEYDEN_TRAIN_PYTHON", help="The interpreter that trains.")] = None,
    port: Annotated[list[int] | None, typer.Option(help="A port that a run is to use; may be given again.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model directory to look at.", metavar="DIR")] = None,
    store: Annotated[str | None, typer.Option(envvar="LEYDEN_STORE", help="A store's URL, or its database file.")] = None,
    runs: Annotated[Path, typer.Option(help="The directory of the runs.", metavar="DIR")] = Path("runs"),
    models: Annotated[Path, typer.Option(help="The directory of imported models.", metavar="DIR")] = Path("models"),
    end_orphans: Annotated[bool, typer.Option("--end-orphans", help="End processes that an earlier run left.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before that.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look for what would stop or spoil a run. Exit status 1 if there is a problem."""
    from leyden.doctor.examination import Subject, examine
    from leyden.doctor.finding import Outcome
    from leyden.errors import UsageError

    if engine_python and engine_command:
        raise UsageError("--engine-python and --engine-command exclude each other", "the command names its own interpreter")
    if end_orphans:
        _end_orphans(yes)
    subject = Subject(engine_python, engine_command, train_python, tuple(port or ()), model, store, runs, models)
    findings = []
    for finding in examine(subject):
        findings.append(finding)
        if not as_json:
            _print(finding)
    problems = sum(finding.outcome is Outcome.PROBLEM for finding in findings)
    if as_json:
        print(json.dumps({"format": FORMAT, "ok": not problems, "findings": list(map(_as_dict, findings))}, indent=2, ensure_ascii=False))
    else:
        warnings = sum(finding.outcome is Outcome.WARNING for finding in findings)
        typer.echo(f"{problems or 'no'} problem{'s' * (problems != 1)}, {warnings or 'no'} warning{'s' * (warnings != 1)}", err=True)
    raise typer.Exit(1 if problems else 0)


def _print(finding: Finding) -> None:
    """Flushed, so that a slow check shows what is behind it. Colour only where it is read by a person who wants it."""
    import os

    colours = {"ok": "32", "warning": "33", "problem": "31", "skipped": "2"}
    word = f"{finding.outcome:8}"
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        word = f"\033[{colours[finding.outcome]}m{word}\033[0m"
    print(f"{word} {finding.check + ':':19} {finding.detail}", flush=True)
    if finding.fix:
        print(f"{'':29}→ {finding.fix}", flush=True)


def _as_dict(finding: Finding) -> dict[str, Any]:
    return {"check": finding.check, "outcome": finding.outcome.value, "detail": finding.detail, "fix": finding.fix}


def _end_orphans(yes: bool) -> None:
    from leyden.doctor.orphans import end_orphans, find_orphans
    from leyden.errors import UsageError

    orphans = find_orphans()
    for orphan in orphans:
        typer.echo(f"left by a run that is gone: {orphan}", err=True)
    if not orphans:
        typer.echo("no process of an earlier run to end", err=True)
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("ending processes is asked for first, and there is no terminal", "leyden doctor --end-orphans --yes")
        if not typer.confirm(f"end {len(orphans)}?", err=True):
            return
    typer.echo(f"ended {end_orphans(orphans)}", err=True)
