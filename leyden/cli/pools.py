"""``leyden pools``: what may be trained on, and what measures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leyden.cli.printing import AsJson, print_json, print_table, say

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Check task pools for leaks, list them, move a dev task into training.")

Directory = Annotated[Path, typer.Argument(help="The directory of the pools.", metavar="DIR")]


@app.command()
def check(
    directory: Annotated[Path | None, typer.Argument(help="The directory of the pools.", metavar="DIR")] = None,
    train: Annotated[Path | None, typer.Option(help="Instead: a file of training tasks.", metavar="FILE")] = None,
    evaluation: Annotated[
        list[Path] | None, typer.Option("--eval", help="… and one of evaluation tasks. Repeat it.", metavar="FILE")
    ] = None,
    overlap: Annotated[float, typer.Option(help="The share of a task's 8-grams that is a leak.", min=0.05, max=1)] = 0.6,
    as_json: AsJson = False,
) -> None:
    """Say which training tasks are, or nearly are, evaluation tasks. Exit status 1 when one is. Other numbers are another task."""
    from leyden.environments.leakage import check_leakage
    from leyden.environments.pools import Pools, evaluation_tasks
    from leyden.environments.task import Task
    from leyden.errors import UsageError

    if (directory is None) == (train is None) or bool(train) != bool(evaluation):
        raise UsageError("which pools?", "leyden pools check DIR, or leyden pools check --train FILE --eval FILE")
    if directory is not None:
        pools = Pools.read(directory)
        if not pools.evaluation:
            raise UsageError(
                f"no pool of {directory} measures anything: there is nothing to check against", "make one of dev, frozen or blind"
            )
        report = pools.check(overlap)
    elif train is not None:
        report = check_leakage(Task.from_jsonl(train), evaluation_tasks(evaluation or []), overlap)
    if as_json:
        print_json(**report.as_dict())
    else:
        for leak in report.leaks:
            print(f"{leak.train_id}\t{leak.kind}\t{leak.pool}\t{leak.eval_id}\t{leak.train_text!r}\t{leak.eval_text!r}")
        say(f"{len(report.leaks)} of {report.n_train} training tasks are near one of {report.n_eval} evaluation tasks; "
            f"{report.n_same_template} more are one with other numbers")  # fmt: skip
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def make(
    directory: Directory,
    train: Annotated[Path | None, typer.Option(help="Tasks to train on.", metavar="FILE")] = None,
    dev: Annotated[Path | None, typer.Option(help="Tasks that are looked at while working.", metavar="FILE")] = None,
    frozen: Annotated[Path | None, typer.Option(help="Tasks that gate checkpoints.", metavar="FILE")] = None,
    blind: Annotated[Path | None, typer.Option(help="Tasks for milestones only.", metavar="FILE")] = None,
    source: Annotated[str | None, typer.Option(help="Where they came from, for the record.", metavar="TEXT")] = None,
    as_json: AsJson = False,
) -> None:
    """Make pools of files of tasks, each with its manifest. Refused where a task is in two of them."""
    from leyden.environments.pools import Pools
    from leyden.environments.task import Task
    from leyden.errors import UsageError

    files = {name: path for name, path in (("train", train), ("dev", dev), ("frozen", frozen), ("blind", blind)) if path is not None}
    if not files:
        raise UsageError("there is nothing to make pools of", "for instance: leyden pools make DIR --train FILE --dev FILE")
    provenance = {"files": {name: str(path) for name, path in files.items()}, **({"source": source} if source else {})}
    Pools.make(directory, {name: Task.from_jsonl(path) for name, path in files.items()}, provenance)
    list_(directory, as_json)


@app.command("list")
def list_(directory: Directory, as_json: AsJson = False) -> None:
    """List the pools: how many tasks, by what digest, and what moved where."""
    from leyden.environments.pools import PoolName, Pools

    found = Pools.read(directory)
    pools = [found[name] for name in PoolName]
    if as_json:
        return print_json(pools=[pool.manifest("") for pool in pools])
    print_table(("pool", "tasks", "digest", "moved in"), [(p.name, len(p.tasks), p.sha256[:12], len(p.moves)) for p in pools])


@app.command()
def move(
    directory: Directory,
    ids: Annotated[list[str], typer.Argument(help="Dev tasks that will be trained on.", metavar="ID…")],
    reason: Annotated[str, typer.Option(help="Why, for the record.", metavar="TEXT")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would move.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move dev tasks into training, for good: they leave dev, and that is recorded."""
    from leyden.environments.pools import PoolName, Pools

    moved = Pools.read(directory).moved_to_training(ids, reason) if dry_run else Pools.move(directory, ids, reason)
    after = {str(name): len(moved[name].tasks) for name in PoolName}
    if as_json:
        return print_json(moved=list(dict.fromkeys(ids)), dry_run=dry_run, tasks=after)
    say(f"{'would move' if dry_run else 'moved'} {len(set(ids))}: {', '.join(f'{name} {n}' for name, n in after.items())}")
