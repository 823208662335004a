"""``leyden gate``: may a candidate replace the champion? Over two evals, or, with floors alone, over one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leyden.cli.printing import AsJson, print_json

if TYPE_CHECKING:
    from leyden.environments.gate import Gate
    from leyden.environments.outcomes import Outcomes
    from leyden.environments.results import EnvironmentRunResult

Share = typer.Option(metavar="SHARE", min=0.0, max=1.0)


Results = Annotated[
    list[str], typer.Argument(help="An eval's id, the beginning of one, @latest, or a saved result.", metavar="[CHAMPION] CANDIDATE")
]
Regression = Annotated[
    tuple[str, str] | None, typer.Option(help="Both on other tasks, at which the candidate must not be worse.", metavar="RESULT RESULT")
]
Undecided = Annotated[bool, typer.Option("--allow-undecided", help="Exit status 0 also where nothing was shown.")]


def run(
    results: Results,
    regression: Regression = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with what is asked (docs/gate.md).", metavar="FILE")] = None,
    min_pass_rate: Annotated[float | None, Share] = None,
    min_coverage: Annotated[float | None, Share] = None,
    max_drop: Annotated[float | None, Share] = None,
    allow_undecided: Undecided = False,
    junit: Annotated[Path | None, typer.Option(help="Also write JUnit XML there.", metavar="FILE")] = None,
    evals: Annotated[Path, typer.Option("--evals", help="The directory of the evals.", metavar="DIR")] = Path("evals"),
    as_json: AsJson = False,
) -> None:
    """Compare CANDIDATE with CHAMPION stage by stage, or hold one result alone to bounds. --max-drop: of any single task's pass rate.

    Exit status 0: promote; 1: reject, or undecided; 5: they are not of the same environment."""
    from leyden.environments.judging import judge
    from leyden.environments.junit import to_junit
    from leyden.environments.verdict import Decision
    from leyden.errors import UsageError
    from leyden.files import disk_errors, write_atomically

    if len(results) > 2:
        raise UsageError(f"{len(results)} results are too many", "give the champion's and the candidate's, or one alone")
    floors = {"min_pass_rate": min_pass_rate, "min_coverage": min_coverage, "max_drop": max_drop}
    gate = _gate(config, {name: value for name, value in floors.items() if value is not None})
    champion, candidate = _read_pair((results[0], results[1]), evals) if len(results) == 2 else (None, _read(results[0], evals))
    if champion is None:
        _check_floors(gate, regression is not None)
    verdict = judge(champion, candidate, gate, regression=_read_pair(regression, evals) if regression else None)
    if junit is not None:
        with disk_errors(junit.parent):
            junit.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(junit, to_junit(verdict, champion, candidate, gate.max_drop, allow_undecided))
    if as_json:
        print_json(**verdict.model_dump(mode="json"))
    else:
        print("\n".join(verdict.lines()))
    accepted = (Decision.PROMOTE, Decision.UNDECIDED) if allow_undecided else (Decision.PROMOTE,)
    raise typer.Exit(0 if verdict.decision in accepted else 1)


def _gate(path: Path | None, floors: dict[str, float]) -> Gate:
    import tomllib
    from difflib import get_close_matches

    from pydantic import ValidationError

    from leyden.environments.gate import Budget, Gate
    from leyden.errors import NotFound, UsageError

    try:
        asked: dict[str, Any] = tomllib.loads(path.read_text()) if path else {}
    except OSError as error:
        raise NotFound(f"no gate at {path}", "give the path of a TOML file") from error
    except ValueError as error:  # TOML, or not UTF-8
        raise UsageError(f"{path} is no TOML: {error}", "see docs/gate.md for one") from error
    try:
        return Gate.model_validate(asked | floors)
    except ValidationError as error:
        first = error.errors()[0]
        known = list(Budget.model_fields if first["loc"][0] == "budgets" and len(first["loc"]) == 3 else Gate.model_fields)
        near = get_close_matches(str(first["loc"][-1]), known, n=1) if first["type"] == "extra_forbidden" else []
        hint = f"did you mean {near[0]}?" if near else f"it may hold {', '.join(known)}"
        what = "there is no such setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {what}", hint) from error


def _read_pair(names: tuple[str, str], evals: Path) -> tuple[Outcomes, Outcomes]:
    """Raises ``Conflict`` where they are not of one environment: their tasks or their scorer differ, or may."""
    from leyden.cli.diff import read
    from leyden.environments.outcomes import outcomes_of
    from leyden.errors import Conflict

    first, second = (read(name, evals) for name in names)
    if not second.env_matches(first):
        changed = ", ".join(second.env_fingerprint.difference(first.env_fingerprint))
        hint = "measure both on the same one; what has no digest equals nothing, give it a version"
        raise Conflict(f"{names[0]} and {names[1]} are not known to be of the same environment: {changed} differ", hint)
    return outcomes_of(first, _name(names[0], first)), outcomes_of(second, _name(names[1], second))


def _read(name: str, evals: Path) -> Outcomes:
    from leyden.cli.diff import read
    from leyden.environments.outcomes import outcomes_of

    result = read(name, evals)
    return outcomes_of(result, _name(name, result))


def _check_floors(gate: Gate, regression: bool) -> None:
    from leyden.errors import UsageError

    if gate.max_drop is not None:
        raise UsageError("--max-drop is a drop from a champion, and there is none", "give two results: leyden gate CHAMPION CANDIDATE")
    bounds = [gate.min_pass_rate, gate.min_coverage, gate.min_recovery, *gate.safety, *(b.most for b in gate.budgets.values())]
    if not regression and all(bound is None for bound in bounds):
        raise UsageError("nothing is asked of one result", "set a bound, such as --min-pass-rate 0.8, or give the champion's as well")


def _name(wanted: str, result: EnvironmentRunResult) -> str:
    """The eval's whole id, for ``@latest`` means another one tomorrow; ``evals/ID/result.jsonl`` is called by its eval as well."""
    path = Path(wanted)
    if not path.is_file():
        return result.run_id or wanted
    return path.parent.name if path.name == "result.jsonl" and path.parent.name else path.stem if path.suffix else wanted
