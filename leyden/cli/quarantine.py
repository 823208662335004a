"""``leyden quarantine``: the calls of a run that are in none of its rows, why, and which of them would be under other settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from leyden.cli.printing import AsJson, print_json, print_table, say

if TYPE_CHECKING:
    from leyden.algorithm.quarantine import Quarantine
    from leyden.algorithm.refusals import Quarantined
    from leyden.algorithm.replay import Replay
    from leyden.algorithm.sft.rundir import RunDir


class _ListsARun(TyperGroup):
    """``leyden quarantine RUN`` is ``leyden quarantine list RUN``, unless RUN looks like a mistyped command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = bool(args) and (args[0] in ("-h", "--help") or bool(get_close_matches(args[0], self.commands, n=1, cutoff=0.7)))
        return super().parse_args(ctx, args if named else ["list", *args])


app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    cls=_ListsARun,
    help="List the calls of a run that are in none of its rows; try them again.",
)

Run = Annotated[str, typer.Argument(help="A run's id, the beginning of one, or @latest.")]
Runs = Annotated[Path, typer.Option("--runs", help="The directory of the runs.", metavar="DIR")]
Iteration = Annotated[int | None, typer.Option(help="Of this iteration only.", min=0, metavar="N")]
Reason = Annotated[str | None, typer.Option(help="Only what was refused for this reason.", metavar="REASON")]
Store = Annotated[str | None, typer.Option("--store", help="The store, where the run does not know it.", metavar="URL")]


@app.command("list")
def list_(
    run: Run = "@latest",
    iteration: Iteration = None,
    reason: Reason = None,
    export: Annotated[
        Path | None, typer.Option(help="Write them with their messages and token ids, as JSON Lines.", metavar="FILE")
    ] = None,
    store: Store = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List what was refused, an attempt's calls of one reason a line: iteration, reason, calls, rollout, attempt, task, detail."""
    from leyden.algorithm.sft.rundir import RunDir

    directory = RunDir.find(runs, run)
    found = _read(directory, iteration, reason)
    if export is not None:
        from leyden.algorithm.quarantine import check_output
        from leyden.algorithm.quarantine_export import export_calls
        from leyden.cli.progress import Progress

        check_output(export, directory)
        progress = Progress("attempts written")
        written = _with_store(directory, store, lambda opened: export_calls(opened, found, export, progress.step))
        say(f"{written} calls to {export}")
    if as_json:
        told = [{**_totals(quarantine), "entries": [entry.model_dump(mode="json") for entry in entries]} for quarantine, entries in found]
        return print_json(run=directory.id, iterations=told, export=None if export is None else str(export))
    if export is not None:
        print(export)
        return
    print_table(
        ("it", "reason", "calls", "rollout", "attempt", "task", "detail"),
        [
            (one.iteration, entry.reason, len(entry.generation_ids), entry.rollout_id, entry.attempt, entry.task, entry.detail)
            for one, entries in found
            for entry in entries
        ],
    )
    for quarantine, entries in found:
        say(_sentence(quarantine, entries))


@app.command()
def replay(
    run: Run = "@latest",
    iteration: Iteration = None,
    reason: Reason = None,
    keep_truncated: Annotated[bool, typer.Option("--keep-truncated", help="Learn from calls that stopped at their limit.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Of the longest row, prompt included.", min=2, metavar="N")] = None,
    truncate: Annotated[str | None, typer.Option(help="A longer one: refuse, or turns (leave off the calls that do not fit).")] = None,
    any_template: Annotated[bool, typer.Option("--any-template", help="Also prompts that the checkpoint would read otherwise.")] = False,
    reward_policy: Annotated[
        str | None, typer.Option(help="Which call a reward belongs to; see docs/quarantine.md.", metavar="NAME")
    ] = None,
    gamma: Annotated[float | None, typer.Option(help="Of the policy discounted.", min=0, max=1)] = None,
    output: Annotated[Path | None, typer.Option(help="Write the rows that pass now, with a sidecar: FILE.arrow.", metavar="FILE")] = None,
    store: Store = None,
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Build rows of them again from the store, under the run's settings but for those named, and say which pass now.

    Nothing in the run changes. stdout gets the rows: iteration, row, rollout, attempt, calls, tokens, why they were in quarantine.
    """
    from leyden.algorithm.replay import check_dataset, write_replay
    from leyden.algorithm.replay import replay as again
    from leyden.algorithm.sft.rundir import RunDir
    from leyden.cli.progress import Progress

    directory = RunDir.find(runs, run)
    if output is not None:
        check_dataset(output, directory)
    found = _read(directory, iteration, reason)
    ways = {"max_tokens": max_tokens, "truncate": _truncate(truncate), "keep_truncated": keep_truncated or None}
    rows = _given(ways | {"any_template": any_template or None})
    attribution = _given({"policy": _policy(reward_policy), "gamma": gamma})
    attempts = {(entry.rollout_id, entry.attempt) for _, entries in found for entry in entries}
    progress = Progress("attempts read", len(attempts))
    replayed = _with_store(directory, store, lambda opened: again(directory, opened, found, rows, attribution, progress.step))
    settings = {"rows": rows, "attribution": attribution}
    written = output is not None and write_replay(output, directory, replayed, settings)
    if as_json:
        path = str(output) if written else None
        still = [entry.model_dump(mode="json") for entry in replayed.still]
        rows_made = [one.as_dict() for one in replayed.released]
        return print_json(run=directory.id, path=path, **replayed.as_dict() | {"still": still}, rows=rows_made, settings=settings)
    print_table(
        ("it", "row", "rollout", "attempt", "calls", "tokens", "was"),
        [
            (made["iteration"], made["row_id"], made["rollout_id"], made["store_attempt"], len(made["generation_ids"]), made["tokens"],
             ", ".join(sorted(set(made["were"].values()))))
            for made in (one.as_dict() for one in replayed.released)
        ],
    )  # fmt: skip
    _say(replayed)
    if output is not None:
        say(f"{len(replayed.released)} rows to {output}" if written else "nothing written")


def _read(run: RunDir, iteration: int | None, reason: str | None) -> list[tuple[Quarantine, list[Quarantined]]]:
    """Of each iteration, or of one: its quarantine, and the entries that are asked for."""
    from leyden.algorithm.quarantine import iterations, read_quarantine

    wanted = None if reason is None else _reason(reason)
    numbers = iterations(run) if iteration is None else [iteration]
    if not numbers:
        from leyden.errors import NotFound

        raise NotFound(f"run {run.id} has collected nothing yet", f"see how it stands: leyden runs show {run.id}")
    found = [read_quarantine(run, number) for number in numbers]
    return [(one, [entry for entry in one.entries if wanted in (None, entry.reason)]) for one in found]


def _with_store(run: RunDir, url: str | None, question: Callable[[Any], Any]) -> Any:
    import asyncio

    from leyden.algorithm.run_store import store_of_run

    async def go() -> Any:
        async with store_of_run(run, url) as opened:
            return await question(opened)

    return asyncio.run(go())


def _totals(one: Quarantine) -> dict[str, Any]:
    from leyden.algorithm.refusals import by_reason

    reasons = by_reason(one.entries)
    calls = {"calls": one.calls, "rows": one.rows, "merged_calls": one.merged_calls, "quarantined_calls": reasons.total()}
    return {"iteration": one.iteration, **calls, "reasons": dict(reasons.most_common())}


def _sentence(one: Quarantine, entries: Sequence[Quarantined]) -> str:
    from leyden.algorithm.refusals import by_reason

    all_of_it, shown = by_reason(one.entries).total(), by_reason(entries)
    reasons = ", ".join(f"{calls} {reason}" for reason, calls in shown.most_common())
    in_rows = f"{one.rows + one.merged_calls} in {one.rows} rows"
    among = f", of them {reasons}" if len(entries) < len(one.entries) else f": {reasons}" if reasons else ""
    return f"iteration {one.iteration}: {one.calls} calls, {in_rows}, {all_of_it} in quarantine{among}"


def _say(replayed: Replay) -> None:
    say(f"{replayed.released_calls} of {replayed.calls} calls in quarantine pass now, in {len(replayed.released)} rows")
    if replayed.still:
        say("  still refused: " + ", ".join(f"{calls} {reason}" for reason, calls in replayed.still_by_reason.items()))
    if replayed.repeated_calls:
        say(f"  {replayed.repeated_calls} further calls of these rows are in the run's own rows as well: do not train on both")
    if replayed.missing:
        say(f"  {replayed.missing} are not in the store any more")


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _reason(name: str) -> str:
    from leyden.algorithm.refusals import Refusal

    return _one_of(name, [str(reason) for reason in Refusal], "reason")


def _policy(name: str | None) -> str | None:
    from leyden.algorithm.attribution import RewardPolicy

    return None if name is None else _one_of(name, [str(policy) for policy in RewardPolicy], "reward policy")


def _truncate(name: str | None) -> str | None:
    return None if name is None else _one_of(name, ["refuse", "turns"], "way to truncate")


def _one_of(name: str, known: Sequence[str], what: str) -> str:
    if name not in known:
        from leyden.errors import UsageError

        near = get_close_matches(name, known, n=1)
        raise UsageError(f"no {what} {name!r}", f"did you mean {near[0]}?" if near else f"one of: {', '.join(known)}")
    return name
