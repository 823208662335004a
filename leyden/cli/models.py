"""``leyden models``: bring models in; look at the versions of a run and move its champion."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from leyden.models.registry import Registry, Version

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Import models; list, show, verify and promote versions.")

Where = Annotated[Path, typer.Option("--in", help="The directory of the versions.", metavar="DIR")]
Name = Annotated[str, typer.Argument(help="version_N, @champion, @previous or @latest.", metavar="VERSION")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]

LATEST_RUN = Path("runs/latest/models")
FORMAT = 1


@app.command("import")
def import_(
    source: Annotated[str, typer.Argument(help="smollm2, a local model directory, or a hub name like ORG/NAME.")],
    to: Annotated[Path | None, typer.Option(help="Where to; default: models/ and the source's name.")] = None,
) -> None:
    """Write a model's weights, tokenizer and a tool-aware chat template into a directory, and print its path."""
    from leyden.models.importer import default_directory, import_model

    directory = to or default_directory(source)
    _say(f"importing {source} into {directory}")
    print(import_model(source, directory))


@app.command("list")
def list_(where: Where = LATEST_RUN, as_json: AsJson = False) -> None:
    """List versions, oldest first."""
    registry = _registry(where)
    pointers = registry.pointers
    if as_json:
        rows = [_describe(version) for version in registry.list()]
        return _print_json({"versions": rows, "champion": pointers.champion, "previous": pointers.previous})
    marks = {pointers.previous: "previous", pointers.champion: "champion"}
    for version in registry.list():
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(version.manifest.created_at / 1_000_000))
        print(f"{version.name:12}{version.manifest.parent or '-':12}{made}  {marks.get(version.name, '')}".rstrip())


@app.command()
def show(name: Name = "@champion", where: Where = LATEST_RUN, as_json: AsJson = False) -> None:
    """Show where a version came from."""
    version = _registry(where).get(name)
    described = _describe(version)
    if as_json:
        return _print_json(described)
    for key, value in described.items():
        print(f"{key:16}{value if isinstance(value, str) else json.dumps(value)}")


@app.command()
def verify(name: Name = "@champion", where: Where = LATEST_RUN, as_json: AsJson = False) -> None:
    """Check a version's files against its manifest, and a trained one against its base and adapter. Exit status 1 if a check fails."""
    from leyden.models.files import sha256_of
    from leyden.models.registry import check_model_dir

    registry = _registry(where)
    version = registry.get(name)
    check_model_dir(version.path)
    wanted = version.manifest.files
    differ = [path for path, digest in wanted.items() if not (version.path / path).is_file() or sha256_of(version.path / path) != digest]
    detail = f"differ from the manifest: {', '.join(differ)}" if differ else f"{len(wanted)} files as the manifest says"
    checks = [{"name": "files", "ok": not differ, "detail": detail}]
    if version.adapter_dir and version.manifest.parent:
        from leyden.models.verifier import verify as verify_version

        parent = registry.get(version.manifest.parent)
        report = verify_version(version.path, registry.base_of(version).path, version.adapter_dir, parent_dir=parent.path)
        checks += [check.model_dump() for check in report.checks]
    if as_json:
        _print_json({"version": version.name, "ok": all(check["ok"] for check in checks), "checks": checks})
    else:
        for check in checks:
            print(f"{'ok' if check['ok'] else 'FAILED':8}{check['name']}: {check['detail']}")
    raise typer.Exit(0 if all(check["ok"] for check in checks) else 1)


@app.command()
def promote(
    name: Name,
    where: Where = LATEST_RUN,
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "promoted by hand",
    dry_run: DryRun = False,
) -> None:
    """Make a version the champion."""
    registry = _registry(where)
    version = registry.get(name)
    _say(f"{registry.pointers.champion} → {version.name}{' (dry run)' if dry_run else ''}")
    if not dry_run:
        registry.promote(version.name, reason)


@app.command()
def rollback(where: Where = LATEST_RUN, dry_run: DryRun = False) -> None:
    """Swap champion and previous."""
    registry = _registry(where)
    before, after = registry.get("@champion").name, registry.get("@previous").name
    _say(f"{before} → {after}{' (dry run)' if dry_run else ''}")
    if not dry_run:
        registry.rollback()


def _registry(where: Path) -> Registry:
    from leyden.errors import NotFound
    from leyden.models.registry import Registry

    if not where.is_dir():
        raise NotFound(f"no versions at {where}", "give their directory: --in runs/RUN/models")
    return Registry(where)


def _describe(version: Version) -> dict[str, Any]:
    return {"path": str(version.path), **version.manifest.model_dump(mode="json")}


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps({"format": FORMAT, **value}, indent=2, ensure_ascii=False))


def _say(text: str) -> None:
    typer.echo(text, err=True)
