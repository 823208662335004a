"""``leyden eval module:env``: K attempts at every task of an environment, kept as they end, gone on with after a kill."""

from __future__ import annotations

import asyncio
import shlex
import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.cli.printing import AsJson, print_json, print_table, say

if TYPE_CHECKING:
    from leyden.environments.environment import Environment
    from leyden.environments.evaldir import EvalDir
    from leyden.environments.results import EnvironmentRunResult
    from leyden.environments.run import Asking

FAILED = 3  # a part failed: nothing could be scored, or the run stopped itself

Evals = Annotated[Path, typer.Option("--evals", help="The directory of the evals.", metavar="DIR")]


def run(
    env: Annotated[str | None, typer.Argument(help="module:env, or path/to/file.py:env.", metavar="ENV")] = None,
    k: Annotated[int | None, typer.Option("-k", help="Attempts at each task; default 8.")] = None,
    tasks: Annotated[list[str] | None, typer.Option(help="The id of a task; default: all. Repeat it.", metavar="ID")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Serve it for the agent: a directory, or what leyden models import takes: once, into models/.", metavar="MODEL"),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Instead: an OpenAI-compatible endpoint, ending in /v1.", metavar="URL")] = None,
    served_model: Annotated[str | None, typer.Option(help="The model's name there.", metavar="NAME")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="The variable that holds the key for it; the key is kept nowhere.", metavar="VAR")
    ] = None,
    engine: Annotated[str, typer.Option(help="What serves MODEL: auto, embedded or vllm.")] = "auto",
    temperature: Annotated[float | None, typer.Option(help="Of the sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Of one answer.")] = None,
    concurrency: Annotated[int, typer.Option(help="Attempts at once.")] = 4,
    timeout: Annotated[float | None, typer.Option(help="Seconds for one attempt; default: the environment's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Recorded with every attempt; default 0.")] = None,
    adaptive: Annotated[bool, typer.Option("--adaptive", help="Stop trying a task once enough is known; -k is then the most.")] = False,
    store: Annotated[str | None, typer.Option(help="URL of a store whose runners make the attempts.", metavar="URL")] = None,
    evals: Evals = Path("evals"),
    resume: Annotated[
        str | None, typer.Option(help="Go on with this eval: its id, the beginning of one, or @latest.", metavar="ID")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List evals, oldest first.")] = False,
    show: Annotated[str | None, typer.Option(help="Show an eval that has ended, and what failed in it.", metavar="ID")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    as_json: AsJson = False,
) -> None:
    """Try every task of an environment K times, and say what it came to.

    The grid goes to stderr; the numbers and the path of the result to stdout. Ctrl+C loses nothing: it prints the line that goes on.
    """
    from leyden.environments.evaldir import EvalDir
    from leyden.errors import UsageError
    from leyden.models.importer import model_directory

    if listing:
        return _list(evals, as_json)
    if show is not None:
        return _show(EvalDir.find(evals, show), as_json)
    how: dict[str, Any] = {
        "env": env, "model_source": model, "model_dir": model and str(model_directory(model).resolve()), "base_url": base_url,
        "served_model": served_model, "api_key_env": api_key_env, "engine": engine, "temperature": temperature, "max_tokens": max_tokens,
        "timeout": timeout,
    }  # fmt: skip
    if resume is not None:
        if tasks or store or adaptive or k is not None or seed is not None:
            raise UsageError("an eval goes on as it was begun", "leave -k, --tasks, --seed, --store and --adaptive out, or start a new one")
        earlier = EvalDir.find(evals, resume)
        resume = earlier.id
        how = {name: earlier.asked.get(name) if value in (None, "auto") else value for name, value in how.items()}
    k, seed = 8 if k is None else k, seed or 0
    if how["env"] is None:
        raise UsageError("which environment?", "leyden eval module:env, or path/to/file.py:env")
    if how["model_dir"] and how["base_url"]:
        raise UsageError("--model serves a model, --base-url names an endpoint that serves already", "leave one of them out")
    if bool(how["base_url"]) != bool(how["served_model"]):
        raise UsageError(
            "--base-url and --served-model belong together", "leyden eval … --base-url http://127.0.0.1:8000/v1 --served-model NAME"
        )
    if store and timeout is not None:
        raise UsageError("with --store, the environment's own timeout holds", "set its timeout_seconds, here and where the runners are")
    with redirect_stdout(sys.stderr):  # what an agent prints is talk
        environment = _load(str(how["env"]), how["timeout"])

    from leyden.environments.adaptive import AdaptiveK
    from leyden.environments.plan import check_asked
    from leyden.environments.run import Asking

    asking = Asking(
        k=k, tasks=tasks, concurrency=concurrency, store=store, evals=evals, resume=resume, seed=seed,
        adaptive=AdaptiveK(max_k=k) if adaptive and resume is None else None, how=how,
    )  # fmt: skip
    if dry_run:
        return _plan(environment, asking, as_json)
    check_asked(environment, k=k, tasks=tasks, concurrency=concurrency, seed=seed)  # before the seconds that a model takes
    with redirect_stdout(sys.stderr):
        result = _evaluate(environment, asking)
    print(result, file=sys.stderr)
    _report(result, EvalDir.find(evals, result.run_id or ""), as_json)
    if result.stopped_early or not result.n_scored:
        raise typer.Exit(FAILED)


def _load(spec: str, timeout: float | None) -> Environment:
    from leyden.environments.environment import Environment
    from leyden.errors import UsageError
    from leyden.runners.loading import load_object

    found = load_object(spec)
    if not isinstance(found, Environment):
        raise UsageError(f"{spec} is no environment but a {type(found).__name__}", "name a leyden.Environment at the top of that file")
    return found if timeout is None else replace(found, timeout_seconds=timeout)


def _evaluate(environment: Environment, asking: Asking) -> EnvironmentRunResult:
    """Raises ``Interrupted`` on Ctrl+C, having said what there is and how to go on."""
    import uvloop

    from leyden.algorithm.sft.report import Board
    from leyden.cli.serving import served
    from leyden.environments.run import RunCancelled, drive
    from leyden.process import end_leftovers, new_marker
    from leyden.trainer.interruption import interruptible

    marker, board = new_marker(), Board()

    async def go() -> EnvironmentRunResult:
        async with served(asking.how or {}, Path(asking.evals), marker, board) as llm:
            try:
                return await drive(environment, replace(asking, model=llm))
            except RunCancelled as error:
                board.say(str(error.result))
                board.say(f"resume: {shlex.join(['leyden', 'eval', *_place(asking), '--resume', error.eval_id])}")
                raise

    try:
        return uvloop.run(interruptible(go(), board, marker))
    finally:
        end_leftovers(marker)


def _place(asking: Asking) -> list[str]:
    return [] if str(asking.evals) == "evals" else ["--evals", str(asking.evals)]


def _plan(environment: Environment, asking: Asking, as_json: bool) -> None:
    from leyden.cli.serving import described
    from leyden.environments.plan import make_plan

    llm = described(asking.how or {})
    plan = asyncio.run(make_plan(
        environment, k=asking.k, tasks=asking.tasks, model=llm, concurrency=asking.concurrency, seed=asking.seed,
        remote=asking.store is not None,
    ))  # fmt: skip
    facts = {
        "env": environment.name,
        "tasks": len(plan.tasks),
        "k": plan.k,
        "attempts": len(plan.tasks) * plan.k,
        "concurrency": plan.concurrency,
        "model": None if llm is None else llm.model,
        "store": asking.store or f"a new one in {asking.evals}",
        "env_fingerprint": plan.env_fingerprint.digest,
        "policy_fingerprint": plan.policy_fingerprint.digest,
    }
    if as_json:
        return print_json(**facts)
    for name, value in facts.items():
        print(f"{name:20}{'-' if value is None else value}")


def _report(result: EnvironmentRunResult, directory: EvalDir, as_json: bool) -> None:
    summary = result.summary()
    if as_json:
        return print_json(**summary, result=str(directory.result))
    if result.n_scored:
        at = summary["at_k"]
        print(f"pass rate {result.pass_rate:.4f} (95 % {result.interval.low:.4f} to {result.interval.high:.4f})")
        print(f"pass@{at['k']} {at['pass_at']:.4f}, pass^{at['k']} {at['pass_hat']:.4f}")
    print(f"scored {result.n_scored} of {result.n_planned} planned")
    print(directory.result)


def _list(evals: Path, as_json: bool) -> None:
    from leyden.environments.evaldir import EvalDir

    rows = [_listed(one) for one in EvalDir.all(evals)]
    if as_json:
        return print_json(evals=rows)
    print_table(
        ["id", "environment", "plan", "state", "pass rate", "coverage"],
        [[row["id"], row["env"], _planned(row), row["state"], _number(row["pass_rate"]), _number(row["coverage"])] for row in rows],
    )
    if not rows:
        say(f"there is no eval in {evals}")


def _listed(one: EvalDir) -> dict[str, Any]:
    from leyden.errors import UsageError

    summary = one.summary or {}
    try:
        asked = one.asked
    except UsageError:  # the others are still to be seen
        asked, state = {"tasks": ()}, "damaged"
    else:
        state = "finished" if summary else "unfinished"
    return {
        "id": one.id,
        "env": asked.get("env_name"),
        "tasks": len(asked["tasks"]),
        "k": asked.get("k"),
        "state": state,
        "pass_rate": summary.get("pass_rate"),
        "coverage": summary.get("coverage"),
    }


def _planned(row: dict[str, Any]) -> str:
    return "" if row["k"] is None else f"{row['tasks']} × {row['k']}"


def _show(directory: EvalDir, as_json: bool) -> None:
    from leyden.environments.results import EnvironmentRunResult
    from leyden.errors import NotFound

    if not directory.result.is_file():
        raise NotFound(f"eval {directory.id} has no result yet", f"go on with it: leyden eval --resume {directory.id}")
    result = EnvironmentRunResult.load(directory.result)
    if as_json:
        return print_json(**result.summary(), result=str(directory.result))
    print(result)
    result.print_report()


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.2f}"
