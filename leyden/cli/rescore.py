"""``leyden rescore EVAL --scorer module:scorer``: another verdict on the same answers, beside the first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.cli.printing import AsJson, print_json, say
from leyden.cli.progress import Progress


def run(
    wanted: Annotated[str, typer.Argument(help="An eval's id, the beginning of one, or @latest.", metavar="EVAL")],
    scorer: Annotated[str, typer.Option(help="module:scorer, or path/to/file.py:scorer.", metavar="SCORER")],
    only: Annotated[str | None, typer.Option(help="failed: what did not pass; unscored: what nobody could judge.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Of this task only. Repeat it.", metavar="ID")] = None,
    name: Annotated[
        str | None, typer.Option("--as", help="The name of these scores; default: the scorer's digest.", metavar="NAME")
    ] = None,
    output_type: Annotated[str | None, typer.Option(help="module:Type of the answers, where they are objects.", metavar="TYPE")] = None,
    concurrency: Annotated[int, typer.Option(help="Answers judged at once.", min=1)] = 8,
    evals: Annotated[Path, typer.Option("--evals", help="The directory of the evals.", metavar="DIR")] = Path("evals"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Score, and record nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Score again what was tried. The agent is not run; the first scores stay, and are what everything goes on reading.

    stdout gets the path of a result with the new scores: leyden diff and leyden export take it.
    """
    from leyden.environments.evaldir import EvalDir
    from leyden.environments.rescore import Which, arescore, record, result_path, scored_path, store_of
    from leyden.environments.results import EnvironmentRunResult
    from leyden.errors import UsageError

    if only not in (None, "failed", "unscored"):
        raise UsageError(f"--only {only!r} says nothing", "--only failed, or --only unscored")
    directory = EvalDir.find(evals, wanted)
    judge = _load_scorer(scorer)
    result = EnvironmentRunResult.load(result_path(directory), _load_type(output_type, directory))
    progress = Progress("attempts scored", result.n_attempts)

    async def go() -> Any:
        found = await arescore(result, judge, Which(only or "all"), task, name, concurrency, progress.step)
        if found.errors and not found.scored:  # no verdict on any: what failed before must not pass for unscored
            first = min(found.errors)
            raise UsageError(f"the scorer raised at every attempt, first at {first}: {found.errors[first]}", "nothing was recorded")
        if not dry_run:
            async with store_of(directory) as store:
                await record(store, found)
            found.result.save(scored_path(directory, found.source))
        return found

    found = asyncio.run(go())
    path = None if dry_run else scored_path(directory, found.source)
    if as_json:
        return print_json(**found.as_dict(), before=result.pass_rate, result=None if path is None else str(path))
    say(f"{len(found.scored)} of {found.n_asked} attempts scored by {found.source[:12]}: {found.n_now_passing} now pass, "
        f"{found.n_now_failing} no longer do, {found.n_unchanged} as before")  # fmt: skip
    if found.n_unjudgeable:
        say(f"{found.n_unjudgeable} have no answer to judge")
    if found.errors:
        say(f"{len(found.errors)} have no score in the new result, for the scorer raised:")
    for key, error in sorted(found.errors.items())[:5]:
        say(f"{key}: {error}")
    if result.pass_rate is not None and found.result.pass_rate is not None:
        say(f"pass rate {result.pass_rate:.4f} of {result.n_scored} → {found.result.pass_rate:.4f} of {found.result.n_scored}")
    if path is not None:
        print(path)


def _load_scorer(spec: str) -> Any:
    from leyden.environments.score import Scorer
    from leyden.errors import UsageError
    from leyden.runners.loading import load_object

    found = load_object(spec)
    if isinstance(found, type) or not isinstance(found, Scorer):
        raise UsageError(f"{spec} is no scorer but a {type(found).__name__}", "name an object with a method ascore, such as a CodeScorer")
    return found


def _load_type(spec: str | None, directory: Any) -> Any:
    """The type named, or that of the environment the eval was made of; None where neither is to be had: answers are then JSON."""
    from leyden.errors import LeydenError
    from leyden.runners.loading import load_object

    if spec is not None:
        return load_object(spec)
    env = directory.asked.get("env")
    if not isinstance(env, str):
        return None
    try:
        return getattr(load_object(env).subject, "output_type", None)
    except (LeydenError, ImportError, AttributeError) as error:
        say(f"the environment {env} is not to be had ({error}): answers that are objects are judged as JSON; name their --output-type")
        return None
