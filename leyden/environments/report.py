"""A result attempt by attempt, for people: what was answered, what was done, why it failed. Its form is no contract."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.output import RunOutput, ToolCall
from leyden.environments.task import Task
from leyden.errors import NotFound, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from leyden.environments.results import EnvironmentRunResult

REASON, ANSWER, ARGUMENTS = 200, 110, 80  # characters shown


def print_report(result: EnvironmentRunResult, only: str, attempts: int | None, console: Console | None) -> None:
    """Raises ``UsageError`` for another ``only`` than "failed" (scored fails, and all without a score) and "all"."""
    if only not in ("failed", "all"):
        raise UsageError(f"a report is of the failed attempts or of all, not of {only!r}", 'only="failed" or only="all"')
    if attempts is not None and (isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1):
        raise UsageError(f"attempts is a number from 1, or None, not {attempts!r}", "for instance attempts=5")
    out = console or _console()
    wanted = [(task, attempt) for task, attempt in result.attempts() if only == "all" or not attempt.passed]
    if not wanted:
        out.print(f"{result.env_name}: all {result.n_attempts} attempts passed", markup=False, highlight=False)
        return
    shown = wanted if attempts is None else wanted[:attempts]
    for task, attempt in shown:
        out.print("\n".join(_short(task, attempt)), markup=False, highlight=False, soft_wrap=True)
    if len(wanted) > len(shown):
        out.print(f"... {len(wanted) - len(shown)} more", markup=False, highlight=False)


def print_attempt(result: EnvironmentRunResult, task_id: str, attempt: int, markdown: bool, console: Console | None) -> None:
    one = next((one for one in result.task_results if one.task.id == task_id), None)
    if one is None:
        ids = ", ".join(str(other.task.id) for other in result.task_results[:20])
        raise NotFound(f"the result has no task {task_id!r}", f"its tasks: {ids}")
    if isinstance(attempt, bool) or not isinstance(attempt, int) or not 1 <= attempt <= len(one.attempts):
        raise NotFound(f"task {task_id} has no attempt {attempt!r}", f"count from 1 to {len(one.attempts)}")
    text = "\n".join(_whole(one.task, one.attempts[attempt - 1]))
    out = console or _console()
    if markdown:
        from rich.markdown import Markdown

        out.print(Markdown(text))
    else:
        out.print(text, markup=False, highlight=False, soft_wrap=True)


def _short(task: Task, attempt: AttemptResult) -> Iterator[str]:
    yield _head(task, attempt)
    yield from _why(attempt, REASON)
    if attempt.run is not None:
        yield from (f"    {_call(call)}" for call in attempt.run.tools)
        if attempt.run.content is not None:
            yield f"    answer: {_clip(_text(attempt.run.content), ANSWER)}"
        if usage := _usage(attempt.run):
            yield f"    {usage}"


def _whole(task: Task, attempt: AttemptResult) -> Iterator[str]:
    yield _head(task, attempt)
    yield f"task: {_text(task.input)}"
    if task.expected is not None:
        yield f"expected: {_text(task.expected)}"
    yield from _why(attempt, None)
    if attempt.score is not None and attempt.score.detail:
        yield f"    detail: {_text(dict(attempt.score.detail))}"
    run = attempt.run
    if run is None:
        return
    for message in run.messages:
        yield from _message(message)
    if not run.messages:
        yield from (f"    {_call(call)}" for call in run.tools)
        yield f"answer: {_text(run.content)}"
    if usage := _usage(run):
        yield usage
    if attempt.rollout_id:
        yield f"rollout {attempt.rollout_id}, attempt {attempt.attempt}"


def _head(task: Task, attempt: AttemptResult) -> str:
    score = attempt.score
    verdict = "unscored" if score is None else f"{'passed' if score.passed else 'failed'} {score.value:.2f}"
    limit = ", a tool call was refused" if attempt.tool_call_limit_hit else ""
    return f"{task.id} #{attempt.index + 1}  {verdict}  {attempt.stop_reason}  {attempt.duration_seconds:.1f}s{limit}"


def _why(attempt: AttemptResult, most: int | None) -> Iterator[str]:
    if attempt.error:
        yield f"    error: {_clip(attempt.error, most)}"
    if attempt.score is not None and attempt.score.reason:
        yield f"    reason: {_clip(attempt.score.reason, most)}"
    if attempt.score is not None and attempt.score.dimensions:
        yield "    " + ", ".join(f"{name} {number:g}" for name, number in attempt.score.dimensions.items())


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{message.get('role', '?')}] {_text(message.get('content') or '')}".rstrip()
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        yield f"    → {function.get('name')}({function.get('arguments')})"


def _call(call: ToolCall) -> str:
    return f"tool {call.name}({_clip(_text(dict(call.arguments)), ARGUMENTS)}): {call.outcome}"


def _usage(run: RunOutput) -> str:
    parts = [f"{run.input_tokens} + {run.output_tokens} tokens"] if run.input_tokens is not None else []
    parts += [f"${run.cost:.4f}"] if run.cost is not None else []
    return ", ".join(parts)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        return str(value)


def _clip(text: str, most: int | None) -> str:
    if most is None:
        return text
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def _console() -> Console:
    from rich.console import Console

    return Console()
