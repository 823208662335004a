"""``leyden runs``: what past training runs came to, read from their directories."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from leyden.errors import NotFound, UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="List training runs and show what they came to.")

Runs = Annotated[Path, typer.Option("--runs", help="The directory of the runs.", metavar="DIR")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

FORMAT = 1


@app.command("list")
def list_(runs: Runs = Path("runs"), as_json: AsJson = False) -> None:
    """List runs, newest last."""
    found = [(path.name, _summary(path)) for path in _paths(runs)]
    if as_json:
        rows = [{"run": name, "finished": summary is not None, "champion": (summary or {}).get("champion")} for name, summary in found]
        return _print_json({"format": FORMAT, "runs": rows})
    for name, summary in found:
        print(f"{name}  {_result(summary) if summary else 'no summary: it goes on, or was interrupted'}")


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run's id, the beginning of one, or @latest.")] = "@latest",
    runs: Runs = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show a run's pass rates, what each iteration decided and why, and where the champion is."""
    path = _find(runs, run)
    summary = _summary(path)
    if summary is None:
        raise NotFound(f"run {path.name} has no summary: it goes on, or was interrupted", f"see its logs: {path / 'logs'}")
    if as_json:
        return _print_json(summary)
    _print_versions(summary)
    for iteration in summary.get("iterations", []):
        print(f"iteration {iteration['number']}: {_decision(iteration)}")
    print(f"time: {summary['seconds']['total']:.0f} s")
    print(f"champion: {summary['champion_path']}")


def _print_versions(summary: dict[str, Any]) -> None:
    print(f"{'version':14}{'T=1':22}{'T=0':22}tasks")
    for version in summary["versions"]:
        if "pass_rate" not in version:
            print(f"{version['version']:14}not evaluated")
            continue
        mark = "  champion" if version["version"] == summary["champion"] else ""
        print(f"{version['version']:14}{_rate(version):22}{_rate(version['greedy']):22}{version['n']}{mark}")


def _rate(measured: dict[str, Any]) -> str:
    return f"{measured['pass_rate']:.2f} ({measured['low']:.2f}–{measured['high']:.2f})"


def _decision(iteration: dict[str, Any]) -> str:
    if iteration["nothing_to_learn"]:
        return f"nothing to learn: {iteration['reason']}"
    return f"{'promoted' if iteration['promoted'] else 'not promoted'}. {iteration['reason'] or ''}".rstrip()


def _result(summary: dict[str, Any]) -> str:
    rates = [version for version in summary["versions"] if "pass_rate" in version]
    course = " → ".join(f"{version['pass_rate']:.2f}" for version in rates)
    return f"champion {summary['champion']}" + (f", pass rate {course}" if course else "")


def _find(runs: Path, wanted: str) -> Path:
    if wanted == "@latest":
        wanted = "latest"  # the link
    if (runs / wanted).is_dir():
        return (runs / wanted).resolve()
    names = [path.name for path in _paths(runs)]
    matching = [name for name in names if name.startswith(wanted)]
    if len(matching) == 1:
        return runs / matching[0]
    if matching:
        raise UsageError(f"{wanted} could be {', '.join(matching)}", "give more of the id")
    near = difflib.get_close_matches(wanted, names, n=1)
    raise NotFound(f"no run {wanted!r} in {runs}", f"did you mean {near[0]}?" if near else "see what there is: leyden runs list")


def _paths(runs: Path) -> list[Path]:
    if not runs.is_dir():
        raise NotFound(f"no runs at {runs}", "say where they are: --runs DIR")
    return sorted(path for path in runs.iterdir() if (path / "config.json").is_file() and not path.is_symlink())


def _summary(run: Path) -> dict[str, Any] | None:
    path = run / "summary.json"
    try:
        return json.loads(path.read_text())  # type: ignore[no-any-return]
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "it has been changed by hand: mend or remove it") from None


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
