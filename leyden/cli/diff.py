"""``leyden diff A B``: what changed between two evals of one environment, and whether chance alone would do as much."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leyden.cli.printing import AsJson, print_json

if TYPE_CHECKING:
    from leyden.environments.results import EnvironmentRunResult

Saved = Annotated[str, typer.Argument(help="An eval's id, the beginning of one, @latest, or a saved result.")]


def run(
    baseline: Saved,
    current: Saved,
    evals: Annotated[Path, typer.Option("--evals", help="The directory of the evals.", metavar="DIR")] = Path("evals"),
    as_json: AsJson = False,
) -> None:
    """Compare two evals task by task. Exit status 1 when CURRENT is worse than BASELINE beyond chance (one-sided p < 0.05), 5 when they are
    not of the same environment."""
    from leyden.environments.fingerprint import MismatchError
    from leyden.errors import Conflict

    before, now = read(baseline, evals), read(current, evals)
    try:
        found = now.diff(before)
    except MismatchError as error:
        raise Conflict(error.message, error.hint) from error
    if as_json:
        print_json(**found.to_dict())
    else:
        print(found)
    if found.verdict == "worse":
        raise typer.Exit(1)


def read(wanted: str, evals: Path) -> EnvironmentRunResult:
    """The result of an eval, or in a file. Raises ``NotFound``."""
    from leyden.environments.evaldir import EvalDir
    from leyden.environments.results import EnvironmentRunResult
    from leyden.errors import NotFound

    if Path(wanted).is_file():
        return EnvironmentRunResult.load(wanted)
    directory = EvalDir.find(evals, wanted)
    if not directory.result.is_file():
        raise NotFound(f"eval {directory.id} has no result yet", f"go on with it: leyden eval --resume {directory.id}")
    return EnvironmentRunResult.load(directory.result)
