"""``leyden export EVAL``: a dataset out of what was tried, with a record of where each row came from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.cli.printing import AsJson, ask_store, print_json, say
from leyden.cli.progress import Progress

if TYPE_CHECKING:
    from leyden.environments.exports.options import ExportOptions
    from leyden.environments.exports.report import ExportReport
    from leyden.environments.exports.source import Source
    from leyden.environments.leakage import LeakageGuard

TOKENS = "tokens"


def run(
    wanted: Annotated[str, typer.Argument(help="An eval's id, the beginning of one, @latest, or a saved result.", metavar="EVAL")],
    format_: Annotated[
        str, typer.Option("--format", help="sft, chat, preference, kto, grouped, sharegpt or tokens.", metavar="NAME")
    ] = "sft",
    out: Annotated[Path | None, typer.Option(help="Where to; default: FORMAT.jsonl (tokens.parquet) in the eval's directory.")] = None,
    learning_zone: Annotated[bool, typer.Option("--learning-zone", help="Only of tasks that pass sometimes.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="What failed too.")] = False,
    min_value: Annotated[float | None, typer.Option(help="The least score.")] = None,
    profile: Annotated[str | None, typer.Option(help="Whose caps hold: tinker (of sft), openai, fireworks, none.")] = None,
    dedupe: Annotated[bool, typer.Option("--dedupe", help="Leave out rows that are written already.")] = False,
    limit: Annotated[int | None, typer.Option(help="At most so many rows.")] = None,
    no_redact: Annotated[bool, typer.Option("--no-redact", help="Leave personal data and secrets in.")] = False,
    exclude_pool: Annotated[
        list[Path] | None,
        typer.Option(help="Tasks to keep away from: a directory of pools, or a file of tasks. Repeat it.", metavar="PATH"),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Then EVAL is a training run's id there; for token rows.", metavar="URL")] = None,
    scored_by: Annotated[str | None, typer.Option(help="Use the scores of a rescore: its name.", metavar="NAME")] = None,
    evals: Annotated[Path, typer.Option("--evals", help="The directory of the evals.", metavar="DIR")] = Path("evals"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one dataset, and a sidecar beside it that says where every row came from. stdout gets the path.

    What is not exported is counted, by reason. Where nothing is, no file is left (exit status 0: it is an answer).
    """
    from leyden.environments.evaldir import EvalDir
    from leyden.environments.exports.options import ExportOptions
    from leyden.environments.exports.registry import format_named
    from leyden.environments.exports.source import as_source
    from leyden.environments.exports.writer import write_export
    from leyden.environments.rescore import result_path
    from leyden.errors import UsageError

    options = ExportOptions(
        only_passed=not all_, min_value=min_value, profile=profile, dedupe=dedupe, limit=limit, redact=not no_redact,
        exclude=_guard(exclude_pool or []), dry_run=dry_run,
    )  # fmt: skip
    if store is not None:
        if format_ != TOKENS or out is None or learning_zone or scored_by:
            raise UsageError("a run's store has token rows only", "leyden export RUN --store URL --format tokens --out FILE.parquet")
        return _print(_export_run(store, wanted, out, options), as_json)
    directory = None if Path(wanted).is_file() else EvalDir.find(evals, wanted)
    if directory is None and scored_by:
        raise UsageError(f"{wanted} is a file, with the scores that it has", "name the eval, or the file of the rescore")
    source = as_source(Path(wanted) if directory is None else result_path(directory, scored_by))
    source = source.learning_zone() if learning_zone else source
    attempts = source.open
    source = replace(source, open=lambda: Progress("attempts looked at").watch(attempts()))
    if format_ == TOKENS:
        return _print(_export_tokens(directory, source, out, options), as_json)
    format = format_named(format_)
    path = out or (directory.path if directory else Path(wanted).parent) / f"{format.name}.jsonl"
    _print(write_export(source, path, format, options), as_json)


def _export_tokens(directory: object, source: Source, out: Path | None, options: ExportOptions) -> ExportReport:
    import asyncio

    from leyden.algorithm.token_export import export_tokens
    from leyden.environments.evaldir import EvalDir
    from leyden.environments.rescore import store_of
    from leyden.errors import UsageError

    if not isinstance(directory, EvalDir):
        raise UsageError("token ids are in an eval's store, not in a saved result", "name the eval")

    async def go() -> ExportReport:
        async with store_of(directory) as store:
            return await export_tokens(source, store, out or directory.path / "tokens.parquet", options)

    return asyncio.run(go())


def _export_run(url: str, run_id: str, out: Path, options: ExportOptions) -> ExportReport:
    from leyden.algorithm.run_source import source_of_run
    from leyden.algorithm.token_export import export_tokens
    from leyden.server.client import StoreClient

    async def export(client: StoreClient) -> ExportReport:
        return await export_tokens(await source_of_run(client, run_id), client, out, options)

    return ask_store(url, export)


def _guard(paths: list[Path]) -> LeakageGuard | None:
    from leyden.environments.leakage import LeakageGuard
    from leyden.environments.pools import evaluation_tasks

    return LeakageGuard(evaluation_tasks(paths)) if paths else None


def _print(report: ExportReport, as_json: bool) -> None:
    if as_json:
        path = None if report.path is None else str(report.path)
        return print_json(path=path, rows=report.rows, bytes=report.bytes, sha256=report.sha256, **report.as_dict())
    say(str(report))
    if report.path is not None:
        print(report.path)
