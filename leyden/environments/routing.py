"""Where each finished attempt goes, by an ordered list of rules: the first that holds decides.

A rule names a few facts of the attempt and what they must be. In TOML::

    [[rule]]
    name = "nobody vouches for it"
    to = "safety"
    when = { "dimension.safety" = "< 1" }

A condition is a value (equal), a list (one of them), or a text that begins with <, <=, >, >= or != and goes on with a number (or, for !=,
anything). A fact that is not known (None) satisfies no comparison; ``"unknown"`` asks for it.
"""

from __future__ import annotations

import operator
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from leyden.environments.attempt import AttemptResult
from leyden.environments.leakage import LeakageGuard
from leyden.environments.output import ToolOutcome
from leyden.environments.results import TaskResult
from leyden.errors import UsageError


class Destination(StrEnum):
    SFT = "sft"  # to be imitated
    PREFERENCE = "preference"  # a failure beside a pass at the same task
    EFFICIENCY = "efficiency"  # right, by a long way round
    REPAIR = "repair"  # it got over a failure, or should have
    INCIDENT = "incident"  # the infrastructure's fault, which says nothing about the model
    SAFETY = "safety"
    REVIEW = "review"  # a person should look
    DISCARD = "discard"


UNKNOWN = "unknown"
_KEYS = ("name", "to", "when")
_FORM = "a rule is [[rule]] with name, to and when"
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}

FACTS = (
    "passed", "value", "scored", "stop_reason", "error_type", "tool_calls", "tool_errors", "limit_hit", "answers", "answers_over_best",
    "output_tokens", "seconds", "task_passed", "near_evaluation",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """``when``: fact → condition, all of which must hold; without any it holds always."""

    name: str
    to: Destination
    when: Mapping[str, Any]

    def __post_init__(self) -> None:
        for fact, condition in self.when.items():
            if fact not in FACTS and not fact.startswith("dimension."):
                hint = f"{_nearest(fact, FACTS)}one of: {', '.join(FACTS)}, dimension.NAME"
                raise UsageError(f"rule {self.name!r}: no fact {fact!r}", hint)
            _condition(condition)

    def holds(self, facts: Mapping[str, Any]) -> bool:
        return all(_condition(condition)(facts.get(fact)) for fact, condition in self.when.items())


def read_rules(path: Path | str) -> tuple[Rule, ...]:
    """Rules out of a TOML file, in its order. Raises ``UsageError`` that names the rule."""
    try:
        told = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read rules from {path}: {error}", _FORM) from error
    if unknown := sorted(set(told) - {"rule"}):
        raise UsageError(f"{path}: no key {unknown[0]!r}", f"{_nearest(unknown[0], ['rule'])}{_FORM}")
    given = told.get("rule", [])
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise UsageError(f"{path} holds no rule", _FORM)
    return tuple(_rule(path, one, one.get("name", f"rule {number}")) for number, one in enumerate(given, 1))


def _rule(path: Path | str, told: Mapping[str, Any], name: Any) -> Rule:
    where = f"{path}: {name}"
    if unknown := sorted(set(told) - set(_KEYS)):
        raise UsageError(f"{where}: no key {unknown[0]!r}", f"{_nearest(unknown[0], _KEYS)}{_FORM}")
    to, when = told.get("to"), told.get("when", {})
    if to not in list(Destination):
        raise UsageError(f"{where}: it goes to {to!r}", f"{_nearest(str(to), list(Destination))}`to` is one of: {', '.join(Destination)}")
    if not isinstance(name, str) or not isinstance(when, dict):
        raise UsageError(f"{where}: its name is a text, and `when` a table of conditions", _FORM)
    return Rule(name, Destination(to), when)


def _nearest(word: str, known: Sequence[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}? " if near else ""


@dataclass(frozen=True)
class Routed:
    task: str | None
    attempt: AttemptResult
    to: Destination
    rule: str


class Router:
    """``route`` a task's attempts; ``counts`` are of all so far, and sum to the attempts. What no rule holds for goes to review."""

    def __init__(self, rules: Sequence[Rule] | None = None, guard: LeakageGuard | None = None) -> None:
        self._rules = rules = DEFAULT_RULES if rules is None else rules
        self._guard = guard
        self.counts: Counter[Destination] = Counter({destination: 0 for destination in Destination})
        self.by_rule: Counter[str] = Counter({rule.name: 0 for rule in rules})

    def route(self, result: TaskResult) -> Iterator[Routed]:
        near = self._guard is not None and self._guard.find(result.task) is not None
        for attempt in result.attempts:
            facts = facts_of(attempt, result, near)
            rule = next((rule for rule in self._rules if rule.holds(facts)), Rule("no rule", Destination.REVIEW, {}))
            self.counts[rule.to] += 1
            self.by_rule[rule.name] += 1
            yield Routed(result.task.id, attempt, rule.to, rule.name)


def facts_of(attempt: AttemptResult, result: TaskResult, near_evaluation: bool) -> dict[str, Any]:
    """The plain fields that rules ask about; None for what is not known."""
    run, score = attempt.run, attempt.score
    tools = () if run is None else run.tools
    best = min((_answers(other) for other in result.attempts if other.passed), default=None)
    return {
        "passed": None if score is None else score.passed,
        "value": None if score is None else score.value,
        "scored": score is not None,
        "stop_reason": str(attempt.stop_reason),
        "error_type": attempt.error_type,
        "tool_calls": len(tools),
        "tool_errors": sum(call.outcome is ToolOutcome.ERROR for call in tools),
        "limit_hit": attempt.tool_call_limit_hit,
        "answers": _answers(attempt),  # of the model
        "answers_over_best": _answers(attempt) / best if best else None,  # beside the shortest attempt that passed
        "output_tokens": None if run is None else run.output_tokens,
        "seconds": attempt.duration_seconds,
        "task_passed": result.n_passed,
        "near_evaluation": near_evaluation,
        **{f"dimension.{name}": number for name, number in (score.dimensions if score else {}).items()},
    }


def _answers(attempt: AttemptResult) -> int:
    return 0 if attempt.run is None else sum(message.get("role") == "assistant" for message in attempt.run.messages)


def _condition(told: Any) -> Callable[[Any], bool]:
    """Raises ``UsageError`` for what is no condition."""
    if isinstance(told, list | tuple):
        return lambda fact: fact in told
    if not isinstance(told, str):
        return lambda fact: fact is not None and fact == told
    if told == UNKNOWN:
        return lambda fact: fact is None
    if told.startswith("!="):
        other = told[2:].strip()
        return lambda fact: fact is not None and _written(fact) != _written(_number(other))
    for sign, compare in _COMPARISONS.items():
        if told.startswith(sign):
            try:
                bound = float(told.removeprefix(sign))
            except ValueError as error:
                raise UsageError(f"{told!r} is no condition", 'for instance "> 0"') from error
            return lambda fact: isinstance(fact, int | float) and compare(fact, bound)
    return lambda fact: fact == told


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _written(fact: Any) -> str:
    """As in TOML: true, false, and one form for each number."""
    return str(fact).lower() if isinstance(fact, bool) else str(float(fact)) if isinstance(fact, int) else str(fact)


INFRASTRUCTURE_ERRORS = (
    "APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "ConnectError", "ConnectTimeout", "ReadTimeout",
    "ReadError", "RemoteProtocolError", "ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "Unavailable", "Busy",
    "LeaseLost", "DiskError", "OSError", "MemoryError", "McpError", "ToolServerError",
)  # fmt: skip

DEFAULT_RULES = (
    Rule("near an evaluation task", Destination.DISCARD, {"near_evaluation": True}),
    Rule("not safe", Destination.SAFETY, {"dimension.safety": "< 1"}),
    Rule("infrastructure failed", Destination.INCIDENT, {"stop_reason": "error", "error_type": list(INFRASTRUCTURE_ERRORS)}),
    Rule("ran out of time", Destination.INCIDENT, {"stop_reason": "timeout"}),
    Rule("cancelled", Destination.DISCARD, {"stop_reason": "cancelled"}),
    Rule("cut at the token limit", Destination.DISCARD, {"stop_reason": "truncated"}),
    Rule("waits for an approval", Destination.REVIEW, {"stop_reason": "paused"}),
    Rule("the agent broke", Destination.REPAIR, {"stop_reason": "error"}),
    Rule("nobody could judge it", Destination.REVIEW, {"scored": False}),
    Rule("passed without a tool that it asked for", Destination.REVIEW, {"passed": True, "limit_hit": True}),
    Rule("passed after a tool failed", Destination.REPAIR, {"passed": True, "tool_errors": "> 0"}),
    Rule("passed by a long way round", Destination.EFFICIENCY, {"passed": True, "answers_over_best": "> 1.5"}),
    Rule("passed", Destination.SFT, {"passed": True}),
    Rule("failed where others passed", Destination.PREFERENCE, {"passed": False, "task_passed": "> 0"}),
    Rule("failed after a tool failed", Destination.REPAIR, {"passed": False, "tool_errors": "> 0"}),
    Rule("the task never passes", Destination.REVIEW, {}),  # model, environment or verifier at fault?
)
