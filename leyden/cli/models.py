"""``leyden models``: bring models in; look at the versions of a run and move its champion."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from leyden.models.registry import Registry, Version

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Import models; list, show, verify and promote versions.")

Run = Annotated[str | None, typer.Option("--run", help="Of which run: its id, the beginning of one; default: @latest.", metavar="RUN")]
Runs = Annotated[Path, typer.Option("--runs", help="The directory of the runs.", metavar="DIR")]
Models = Annotated[Path | None, typer.Option("--models", help="Instead of a run: the directory of the versions.", metavar="DIR")]
Name = Annotated[str, typer.Argument(help="version_N or the beginning of it, @champion, @previous or @latest.", metavar="VERSION")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]

RUNS = Path("runs")
FORMAT = 1


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="smollm2, a local model directory, or a hub name like ORG/NAME.")],
    to: Annotated[Path | None, typer.Option(help="Where to; default: models/ and the source's name.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="A file to use instead of the model's own; or hermes: ours, with tools.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model's weights, tokenizer and chat template into a directory, and print its path."""
    from leyden.doctor.finding import Outcome
    from leyden.doctor.model import check_model
    from leyden.models.importer import default_directory, import_model

    directory = to or default_directory(source)
    _say(f"importing {source} into {directory}")
    path = import_model(source, directory, chat_template)
    advice = [finding for finding in check_model(path) if finding.outcome not in (Outcome.OK, Outcome.SKIPPED)]
    for finding in advice:
        _say(f"{finding.outcome}: {finding.check}: {finding.detail}\n  → {finding.fix}")
    if as_json:
        rows = [{"outcome": finding.outcome, "check": finding.check, "detail": finding.detail, "fix": finding.fix} for finding in advice]
        return _print_json({"path": str(path), "advice": rows})
    print(path)


@app.command("list")
def list_(run: Run = None, models: Models = None, runs: Runs = RUNS, as_json: AsJson = False) -> None:
    """List versions, oldest first."""
    registry = _registry(run, models, runs)
    pointers = registry.pointers
    if as_json:
        rows = [_describe(version) for version in registry.list()]
        return _print_json({"versions": rows, "champion": pointers.champion, "previous": pointers.previous})
    marks = {pointers.previous: "previous", pointers.champion: "champion"}
    for version in registry.list():
        mark = marks.get(version.name, version.manifest.arm or "")
        print(f"{version.name:12}{version.manifest.parent or '-':12}{_made(version)}  {mark}".rstrip())


@app.command()
def show(name: Name = "@champion", run: Run = None, models: Models = None, runs: Runs = RUNS, as_json: AsJson = False) -> None:
    """Show where a version came from."""
    registry = _registry(run, models, runs)
    version = _find(registry, name)
    judged = [said.model_dump(mode="json") for said in registry.pointers.judgements if said.candidate == version.name]
    described = _describe(version) | {"judged": judged}
    if as_json:
        return _print_json(described)
    for key, value in described.items():
        print(f"{key:16}{value if isinstance(value, str) else json.dumps(value)}")


@app.command()
def lineage(
    name: Annotated[
        str, typer.Argument(help="A version; or a rollout, a row, or a line of an export (train.jsonl:12).", metavar="VERSION | ID")
    ] = "@champion",
    run: Run = None,
    models: Models = None,
    runs: Runs = RUNS,
    rows: Annotated[bool, typer.Option("--rows", help="Of a version: the rows it was trained on, with their rollouts.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Of a row: its token ids and labels.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a version was made of, step by step from the imported base; or every version that learnt from an attempt (exit status 1
    where nothing is known of it)."""
    from leyden.cli import lineage as show

    if not name.startswith(("@", "version")):
        raise typer.Exit(show.of_attempt(name, runs, tokens, as_json))
    registry = _registry(run, models, runs)
    version = _find(registry, name)
    line = [*(registry.get(ancestor) for ancestor in version.manifest.lineage), version]
    show.of_version(version, line, runs, rows, as_json, _describe, _made)


@app.command()
def verify(
    name: Name = "@champion",
    run: Run = None,
    models: Models = None,
    runs: Runs = RUNS,
    engine: Annotated[str | None, typer.Option(help="Also start one on it: auto, embedded or vllm.", metavar="KIND")] = None,
    engine_python: Annotated[str | None, typer.Option(help="vLLM: the interpreter of an environment that has it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check a version's files against its manifest, and a trained one against its base and adapter. Exit status 1 if a check fails."""
    registry = _registry(run, models, runs)
    version = _find(registry, name)
    differing = registry.verify_files(version)
    detail = (
        f"differ from the manifest: {'; '.join(differing)}" if differing else f"{len(version.manifest.files)} files as the manifest says"
    )
    checks = [{"name": "files", "ok": not differing, "detail": detail}]
    if not differing and version.adapter_dir and version.manifest.parent:
        from leyden.models.verifier import verify as verify_version

        parent = registry.get(version.manifest.parent)
        report = verify_version(version.path, registry.base_of(version).path, version.adapter_dir, parent_dir=parent.path)
        checks += [check.model_dump() for check in report.checks]
    if engine is not None and all(check["ok"] for check in checks):
        checks.append(_try_engine(registry, version, engine, engine_python))
    passed = all(check["ok"] for check in checks)
    if as_json:
        _print_json({"version": version.name, "ok": passed, "checks": checks})
    else:
        for check in checks:
            print(f"{'ok' if check['ok'] else 'FAILED':8}{check['name']}: {check['detail']}")
    raise typer.Exit(0 if passed else 1)


def _try_engine(registry: Registry, version: Version, kind: str, python: str | None) -> dict[str, Any]:
    from leyden.errors import UsageError
    from leyden.models.engine_config import EngineConfig
    from leyden.models.engines import make_engine
    from leyden.models.verifier import try_engine
    from leyden.process import new_marker

    if kind not in ("auto", "embedded", "vllm"):
        raise UsageError(f"no engine {kind!r}", "choose one of auto, embedded, vllm")
    config = EngineConfig.model_validate({"kind": kind, "python": python})
    with tempfile.TemporaryDirectory(prefix="leyden-verify-") as scratch:
        log = Path(scratch) / "engine.log"
        engine = make_engine(config, version, registry.base_of(version), log_path=log, marker=new_marker())
        return asyncio.run(try_engine(engine)).model_dump()


@app.command()
def promote(
    name: Name,
    run: Run = None,
    models: Models = None,
    runs: Runs = RUNS,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "promoted by hand",
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a version the champion."""
    registry = _registry(run, models, runs)
    version, before = _find(registry, name), registry.pointers.champion
    judged = next((j for j in reversed(registry.pointers.judgements) if j.candidate == version.name), None)
    if judged is not None and judged.decision != "promote":
        _say(f"note: the gate said {judged.decision}: {judged.reason}")
    if not dry_run:
        registry.promote(version.name, reason)
    _report_move(before, version.name, dry_run, as_json)


@app.command()
def rollback(run: Run = None, models: Models = None, runs: Runs = RUNS, dry_run: DryRun = False, as_json: AsJson = False) -> None:
    """Swap champion and previous."""
    registry = _registry(run, models, runs)
    before, after = registry.get("@champion").name, registry.get("@previous").name
    if not dry_run:
        registry.rollback()
    _report_move(before, after, dry_run, as_json)


def _report_move(before: str | None, after: str, dry_run: bool, as_json: bool) -> None:
    if as_json:
        return _print_json({"before": before, "champion": after, "dry_run": dry_run})
    unchanged = " already" if before == after else ""
    _say(f"{before or 'no champion'} → {after}{unchanged}{' (dry run: nothing was changed)' if dry_run else ''}")


def _registry(run: str | None, models: Path | None, runs: Path) -> Registry:
    from leyden.algorithm.sft.rundir import RunDir
    from leyden.errors import NotFound, UsageError
    from leyden.models.registry import Registry

    if run is not None and models is not None:
        raise UsageError("--run and --models exclude each other", "--models names the directory of the versions itself")
    if models is None and run is None and not (runs / "latest").exists():
        raise NotFound(f"no runs at {runs}", "say whose versions: --run RUN, with --runs DIR, or --models DIR")
    directory = models or RunDir.find(runs, run or "@latest").models
    if not directory.is_dir():
        raise NotFound(f"no versions at {directory}", "see the runs there are: leyden runs list")
    return Registry(directory)


def _find(registry: Registry, name: str) -> Version:
    """Also by the beginning of a name, where only one begins so."""
    if not name.startswith("@"):
        known = [version.name for version in registry.list()]
        matching = [one for one in known if one.startswith(name)]
        if name not in known and len(matching) == 1:
            name = matching[0]
    return registry.get(name)


def _describe(version: Version) -> dict[str, Any]:
    return {"path": str(version.path), **version.manifest.model_dump(mode="json")}


def _made(version: Version) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(version.manifest.created_at / 1_000_000))


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps({"format": FORMAT, **value}, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    typer.echo(text, err=True)
