"""A result on a page: one row a task, one glyph an attempt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from leyden.environments.attempt import AttemptResult

if TYPE_CHECKING:
    from leyden.environments.results import EnvironmentRunResult, TaskResult

PASSED, FAILED, UNSCORED, OPEN = "█", "░", "▲", "·"
LONGEST_ID = 60  # characters of one that are shown


def glyph(attempt: AttemptResult) -> str:
    return UNSCORED if attempt.score is None else PASSED if attempt.passed else FAILED


def grid(result: EnvironmentRunResult) -> str:
    """Head, a row a task, and what stopped the run or went wrong first."""
    return "\n".join(_lines(result))


def _lines(result: EnvironmentRunResult) -> Iterator[str]:
    head = f"{result.env_name}  k={result.k} · {result.n_attempts} attempts · {result.duration_seconds:.1f}s"
    costs = [attempt.run.cost for _, attempt in result.attempts() if attempt.run is not None and attempt.run.cost is not None]
    yield head + (f" · ${sum(costs):.4f}" if costs else "")
    width = widest(one.task.id for one in result.task_results if one.attempts)
    tried = [one for one in result.task_results if one.attempts]
    yield from (row(one, width, result.k) for one in tried)
    if len(tried) < len(result.task_results):
        yield f"  {len(result.task_results) - len(tried)} tasks were not tried"
    if result.n_scored:
        low, high = result.interval.low, result.interval.high
        covered = "" if result.n_scored == result.n_planned else f", {result.n_scored} of {result.n_planned} planned scored"
        yield f"pass rate {result.pass_rate:.2f} (95 % {low:.2f} to {high:.2f}{covered})"
    elif result.n_planned:
        yield f"no attempt of {result.n_planned} planned has a score"
    if result.stopped_early:
        yield f"stopped early: {result.stopped_early}"
    if result.n_unscored:
        first = next((attempt.error for _, attempt in result.attempts() if attempt.score is None and attempt.error), None)
        if first:
            yield f"first error: {one_line(first)}"


def one_line(text: str) -> str:
    """What a person reads in a row: without the breaks, and the codes that would move a terminal's cursor."""
    return "".join(char if char.isprintable() else "�" for char in " ".join(text.split()))


def widest(ids: Iterable[str | None]) -> int:
    """Columns of a terminal for the longest of these ids, as they are shown."""
    from rich.cells import cell_len

    return max((cell_len(_shown(name)) for name in ids), default=0)


def padded(task_id: str | None, width: int) -> str:
    from rich.cells import cell_len

    name = _shown(task_id)
    return name + " " * (width - cell_len(name))


def _shown(task_id: str | None) -> str:
    name = one_line(task_id or "")
    return name if len(name) <= LONGEST_ID else name[: LONGEST_ID - 1] + "…"


def row(one: TaskResult, width: int, k: int) -> str:
    glyphs = "".join(map(glyph, one.attempts))
    rate = "-" if one.pass_rate is None else f"{one.pass_rate:.2f}"
    tags = ["learning zone"] if one.in_learning_zone else []
    tags += [f"{one.n_unscored} unscored"] if one.n_unscored else []
    return f"  {padded(one.task.id, width)}  {glyphs:{k}}  {one.n_passed}/{one.n_scored}  {rate}  {', '.join(tags)}".rstrip()


def open_row(task_id: str, width: int, k: int, attempts: Mapping[int, AttemptResult]) -> str:
    """While it runs: what is open is a dot."""
    glyphs = "".join(glyph(attempts[index]) if index in attempts else OPEN for index in range(k))
    return f"  {padded(task_id, width)}  {glyphs}"


def cut(lines: Iterable[str], most: int) -> list[str]:
    found = list(lines)
    return found if len(found) <= most else [*found[: most - 1], f"  … and {len(found) - most + 1} tasks more"]
