"""``leyden runs``: how training runs stand and what they came to, read from their directories."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.algorithm.sft.history import History, Standing, read_history
from leyden.algorithm.sft.rundir import RunDir
from leyden.errors import NotFound, UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="List training runs, show how they stand, and give one up.")

Runs = Annotated[Path, typer.Option("--runs", help="The directory of the runs.", metavar="DIR")]
Run = Annotated[str, typer.Argument(help="A run's id, the beginning of one, or @latest.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

FORMAT = 2


@app.command("list")
def list_(runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List runs, newest last."""
    _check(runs)
    found = [read_history(run) for run in RunDir.in_directory(runs)]
    if as_json:
        return _print_json({"format": FORMAT, "runs": [history.as_dict() for history in found]})
    for history in found:
        print(f"{history.run}  {history}{_result(history)}")


@app.command()
def show(run: Run = "@latest", runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """Show how a run stands: its steps, its pass rates, what each iteration decided and why, and where the champion is."""
    _check(runs)
    directory = RunDir.find(runs, run)
    history, summary = read_history(directory), directory.summary
    if as_json:
        return _print_json({"format": FORMAT, **history.as_dict(), "summary": summary})
    origin = f", forked from {history.forked_from}" if history.forked_from else ""
    print(f"run {history.run}: {history}{origin}")
    if summary is None:
        for step in history.steps:
            print(f"  iteration {step['iteration']}  {step['step']:20} {step['seconds']:8.1f} s  {step['note'] or ''}")
        print(f"champion: {directory.models / history.champion if history.champion else 'none'}")
        if history.state is Standing.INTERRUPTED:
            print(f"resume it with the same command, or with --resume {history.run}", file=sys.stderr)
        return
    _print_versions(summary)
    for iteration in summary.get("iterations", []):
        print(f"iteration {iteration['number']}: {_decision(iteration)}")
    print(f"time: {summary['seconds']['total']:.0f} s")
    print(f"champion: {summary['champion_path']}")


@app.command()
def cancel(
    run: Run,
    runs: Runs = Path("runs"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Give an interrupted run up: its queued rollouts are cancelled, and the same command starts a new run."""
    _check(runs)
    directory = RunDir.find(runs, run)
    history = read_history(directory)
    if history.state is not Standing.INTERRUPTED:
        hint = "stop it first: Ctrl+C where it runs" if history.state is Standing.RUNNING else "see leyden runs list"
        raise UsageError(f"run {history.run} is not interrupted, but {history}", hint)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("this gives the run up for good", "say so with --yes")
        if not typer.confirm(f"give run {history.run} up for good?", err=True):
            raise typer.Exit(1)
    with directory.lock():
        url = directory.config.get("store")
        count = asyncio.run(_cancel_rollouts(url, history.run)) if url else 0
        directory.end("cancelled", "leyden runs cancel")
    print(f"run {history.run} is cancelled" + (f", and {count} rollouts with it" if count else ""), file=sys.stderr)


async def _cancel_rollouts(url: str, run_id: str) -> int:
    """In a store of others; one that the run brought itself is not running, and nobody will claim from it."""
    from leyden.server.client import StoreClient
    from leyden.types import RunState

    async with StoreClient(url) as store:
        driven = await store.start_run(run_id, {}, take_over=True)
        count = await store.cancel(run_id=run_id)
        await store.finish_run(run_id, driven.epoch, RunState.CANCELLED)
        return count


def _print_versions(summary: dict[str, Any]) -> None:
    print(f"{'version':14}{'T=1':22}{'T=0':22}tasks")
    for version in summary["versions"]:
        if "pass_rate" not in version:
            print(f"{version['version']:14}not evaluated")
            continue
        known = "champion" if version["version"] == summary["champion"] else version.get("arm")
        mark = f"  {known}" if known else ""
        print(f"{version['version']:14}{_rate(version):22}{_rate(version['greedy']):22}{version['n']}{mark}")


def _rate(measured: dict[str, Any]) -> str:
    return f"{measured['pass_rate']:.2f} ({measured['low']:.2f}–{measured['high']:.2f})"


def _decision(iteration: dict[str, Any]) -> str:
    if iteration["nothing_to_learn"]:
        return f"nothing to learn: {iteration['reason']}"
    told = {"promote": "promoted", "reject": "rejected", "undecided": "undecided"}.get(iteration.get("decision") or "", "not promoted")
    return f"{'promoted' if iteration['promoted'] else told}. {iteration['reason'] or ''}".rstrip()


def _result(history: History) -> str:
    rates = " → ".join(f"{rate:.2f}" for rate in history.pass_rates.values())
    return (f", champion {history.champion}" if history.champion else "") + (f", pass rate {rates}" if rates else "")


def _check(runs: Path) -> None:
    if not runs.is_dir():
        raise NotFound(f"no runs at {runs}", "say where they are: --runs DIR")


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
