"""Whether the agent used the tools it should have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leyden.environments.fingerprint import canonical, digest
from leyden.environments.output import RunOutput, ToolCall, ToolOutcome
from leyden.environments.score import Score
from leyden.errors import UsageError

Wanted = Mapping[str, Any]


class ToolCallScorer:
    """Looks at executions, not at requests: only a call that ran and did not fail counts. Each expected tool is a check, and so is each
    wanted set of arguments (``{tool: {argument: value}}``, or a list of such sets for one tool): it is met by one call that has all these
    values, equal and of the same kind ("5" is not 5); other arguments do not matter. The value is the share of checks that are met, and
    all of them must be to pass.

    ``allow_additional`` False: a call of any other tool fails it. How often and in which order tools are called is not looked at; two
    calls of one expected tool pass. A task's ``expected`` is not looked at either.
    """

    def __init__(
        self,
        expected_tools: Iterable[str] = (),
        *,
        arguments: Mapping[str, Wanted | Sequence[Wanted]] | None = None,
        allow_additional: bool = True,
    ) -> None:
        if isinstance(expected_tools, str):
            raise UsageError(f"expected_tools is a list, not the text {expected_tools!r}", f"write [{expected_tools!r}]")
        if not isinstance(expected_tools, Iterable):
            raise UsageError(f"expected_tools is a list of names, not a {type(expected_tools).__name__}", 'for instance ["calculate"]')
        names = list(expected_tools)
        if not all(isinstance(name, str) and name for name in names):
            raise UsageError(f"a tool's name is a text: {names!r:.80}", 'for instance ["calculate"]')
        if not isinstance(arguments, Mapping | None):
            raise UsageError(f"arguments is a dict, not a {type(arguments).__name__}", '{"calculate": {"expression": "2 + 2"}}')
        self.expected_tools = tuple(dict.fromkeys(names))
        self.arguments = tuple((name, wanted) for name, sets in (arguments or {}).items() for wanted in _sets(name, sets))
        self.allow_additional = allow_additional
        if not self.expected_tools and not self.arguments:
            raise UsageError("there is nothing to check", 'ToolCallScorer(["calculate"])')

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        clean = [call for call in run.tools if call.outcome is ToolOutcome.OK]
        missing = [f"no clean call of {name}" for name in self.expected_tools if not any(call.name == name for call in clean)]
        missing += [f"no clean call of {name} with {_shown(wanted)}" for name, wanted in self.arguments if not _met(name, wanted, clean)]
        known = {*self.expected_tools, *(name for name, _ in self.arguments)}
        others = sorted({call.name for call in clean} - known) if not self.allow_additional else []
        total = len(self.expected_tools) + len(self.arguments)
        reasons = missing + [f"{name} was not to be called" for name in others]
        return Score((total - len(missing)) / total, not reasons, reason="; ".join(reasons) or None)

    def digest(self) -> str:
        """Raises ``FingerprintError`` for a wanted value that JSON has no word for."""
        wanted = sorted(canonical([name, dict(values)]) for name, values in self.arguments)
        return digest(["tool-calls1", sorted(self.expected_tools), wanted, self.allow_additional])


def _sets(name: str, sets: Wanted | Sequence[Wanted]) -> list[Wanted]:
    found = [sets] if isinstance(sets, Mapping) else list(sets) if isinstance(sets, Iterable) else []
    if not found or not all(isinstance(wanted, Mapping) for wanted in found):
        raise UsageError(
            f"the arguments of {name} are a dict or a list of dicts, not {sets!r:.60}", f'{{"{name}": {{"expression": "2 + 2"}}}}'
        )
    return found


def _met(name: str, wanted: Wanted, calls: list[ToolCall]) -> bool:
    return any(
        call.name == name and all(key in call.arguments and _same(call.arguments[key], value) for key, value in wanted.items())
        for call in calls
    )


def _same(given: Any, wanted: Any) -> bool:
    """As JSON has it, where ``True`` is not 1 at any depth, and there are no tuples."""
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return given.keys() == wanted.keys() and all(_same(given[key], wanted[key]) for key in given)
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(map(_same, given, wanted))
    return bool(given == wanted) and isinstance(given, bool) == isinstance(wanted, bool)


def _shown(wanted: Wanted) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in wanted.items())
