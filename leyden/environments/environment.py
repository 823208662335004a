"""An environment: tasks, a scorer, and the agent that is tried on them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from leyden.environments.fingerprint import Fingerprint, FingerprintError, canonical, take
from leyden.environments.score import Scorer
from leyden.environments.subject import Subject
from leyden.environments.subjects import as_subject
from leyden.environments.task import Task, is_id, resolve_ids
from leyden.environments.threads import is_async, takes
from leyden.errors import UsageError
from leyden.runners.agent import Agent
from leyden.types import LLM


@dataclass(frozen=True, eq=False)
class Environment:
    """What is asked, of whom, and how it is judged. Two environments are equal only if they are the same object.

    ``agent`` is an ``agents.Agent`` of the OpenAI Agents SDK or a function without arguments that makes one (``subjects.AgentsSDK`` adds a
    context or a limit of turns), a ``@leyden.rollout`` function or class, a ``leyden.LLM``, or a ``subjects.Endpoint``. ``timeout_seconds``
    is for one attempt, scoring included; None: as long as it takes. ``version`` and ``knowledge_version`` are yours: change one when
    something changes that no fingerprint can see (a tool's code, a corpus the agent searches).

    All of it is checked here, and wrong use is a ``UsageError``.
    """

    name: str
    tasks: Sequence[Task] = field(repr=False)  # a tuple
    scorer: Scorer
    agent: Any
    timeout_seconds: float | None = 120
    version: str | None = None
    knowledge_version: str | None = None
    subject: Subject = field(init=False, repr=False)
    resolved: tuple[Task, ...] = field(init=False, repr=False)  # the tasks with their ids

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise UsageError(f"an environment's name is a text, not {self.name!r}", 'for instance name="sums"')
        tasks = _checked_tasks(self.tasks)
        _check_scorer(self.scorer)
        _check_timeout(self.timeout_seconds)
        for name in ("version", "knowledge_version"):
            if not isinstance(getattr(self, name), str | None):
                raise UsageError(f"{name} is a text or None, not {getattr(self, name)!r}", f'for instance {name}="2"')
        subject = as_subject(self.agent)
        resolved = resolve_ids(tasks)
        for task in resolved:
            task.fresh()
            subject.accept(task)
        for name, value in (("tasks", tasks), ("subject", subject), ("resolved", resolved)):
            object.__setattr__(self, name, value)

    def select(self, ids: Iterable[str | Task]) -> tuple[Task, ...]:
        """The tasks of these ids, in this order, as ``run_rollouts(tasks=…)`` takes them. A task stands for itself: one of ``tasks``, or
        one of a result, as long as it asks and expects the same.

        Raises ``UsageError`` for an unknown id, a task of another making, or the same task twice.
        """
        if isinstance(ids, str | Task):
            raise UsageError("select takes several ids", f"write select([{ids!r}])" if isinstance(ids, str) else "write select([task])")
        known: dict[Any, Task] = {task.id: task for task in self.resolved}
        known |= {task: task for task in self.resolved} | dict(zip(self.tasks, self.resolved, strict=True))
        chosen: dict[Task, None] = {}
        for one in ids:
            task = self._find(one, known)
            if task in chosen:
                raise UsageError(f"task {task.id!r} is selected twice", "name each task once; k says how often it is tried")
            chosen[task] = None
        return tuple(chosen)

    def _find(self, one: str | Task, known: Mapping[Any, Task]) -> Task:
        if isinstance(one, str | Task) and one in known:
            return known[one]
        if isinstance(one, Task):
            same = known.get(one.id)
            if same is None or not _asks_the_same(same, one):
                raise UsageError(f"the task {one.id or one.input!r:.60} is none of {self.name}'s", "select from env.tasks, or by id")
            return same
        names = [str(task.id) for task in self.resolved]
        close = difflib.get_close_matches(str(one), names, 1)
        raise UsageError(f"{self.name} has no task {one!r}", f"did you mean {close[0]!r}?" if close else f"its ids: {', '.join(names[:8])}")

    def env_fingerprint(self) -> Fingerprint:
        """Of all that is asked and how it is judged; the model that answers is not in it. Never raises: what cannot be told is None, with a
        warning. A factory may be called once for it."""
        return take("env1", {
            "tasks": lambda: [[task.id, task.input, task.expected] for task in self.resolved],
            "scorer": lambda: scorer_digest(self.scorer),
            "termination": lambda: {"timeout_seconds": self.timeout_seconds},
            "version": lambda: self.version,
            "knowledge_version": lambda: self.knowledge_version,
            **self._components(lambda: self.subject.question()),
        })  # fmt: skip

    def policy_fingerprint(self, llm: LLM | None = None) -> Fingerprint:
        """Of who answers: the model, its endpoint and sampling, the agent's own code where the agent is code. Never raises, as above."""
        return take("policy1", self._components(lambda: self.subject.policy(llm)))

    def _components(self, get: Callable[[], Mapping[str, Callable[[], Any]]]) -> dict[str, Callable[[], Any]]:
        """Where not even the names of the components can be told, there is one that is unknown."""
        try:
            return dict(get())
        except Exception as error:  # the subject may be anybody's
            reason = error
            return {"agent": lambda: _unknown(reason)}

    def as_agent(self) -> Agent:
        """What runners run: ``leyden runners module:env --store URL --queue NAME``."""
        from leyden.environments.attempting import agent_of

        return agent_of(self)

    def env_matches(self, other: Environment) -> bool:
        """Both ask the same. False if either side is unknown."""
        return self.env_fingerprint().matches(other.env_fingerprint())


def scorer_digest(scorer: Scorer) -> str:
    """What a scorer says of itself. Raises ``FingerprintError`` if it says nothing."""
    tell = getattr(scorer, "digest", None)
    if not callable(tell):
        raise FingerprintError(f"{type(scorer).__name__} has no digest()")
    told = tell()
    if not isinstance(told, str) or not told:
        raise FingerprintError(f"{type(scorer).__name__}.digest() gave {told!r:.60}, not a text")
    return told


def _unknown(error: Exception) -> Any:
    raise FingerprintError(str(error)) from error


def _checked_tasks(tasks: Any) -> tuple[Task, ...]:
    if isinstance(tasks, str | bytes | Mapping | Task) or not isinstance(tasks, Iterable):
        hint = "read a file with Task.from_jsonl(…)" if isinstance(tasks, str) else 'write tasks=[Task("2 + 2", expected="4")]'
        raise UsageError(f"tasks is a sequence of Task, not {type(tasks).__name__}", hint)
    found = tuple(tasks)
    for place, task in enumerate(found):
        if not isinstance(task, Task):
            raise UsageError(f"tasks[{place}] is a {type(task).__name__}, not a Task", 'write Task("2 + 2", expected="4")')
        if not is_id(task.id):
            raise UsageError(f"the id of tasks[{place}] is {task.id!r:.80}", "an id is a text of whole characters, or is left out")
        if not isinstance(task.metadata, Mapping):
            raise UsageError(f"the metadata of tasks[{place}] is a {type(task.metadata).__name__}", "metadata is a dict")
    if not found:
        raise UsageError("an environment has at least one task", 'write tasks=[Task("2 + 2", expected="4")]')
    return found


def _check_scorer(scorer: Any) -> None:
    named = inspect.isroutine(scorer) and scorer.__name__ != "<lambda>"
    hint = f"CodeScorer({scorer.__name__})" if named else "CodeScorer(lambda run, expected: run.content == expected)"
    if isinstance(scorer, type):
        raise UsageError(f"the scorer is the class {scorer.__name__}, not an instance", f"write {scorer.__name__}(…)")
    ascore = getattr(scorer, "ascore", None)
    if not callable(ascore):
        raise UsageError(f"a scorer has a method ascore, and a {type(scorer).__name__} has none", f"write scorer={hint}")
    if not is_async(ascore):
        raise UsageError(f"{type(scorer).__name__}.ascore is not async", "write `async def ascore(self, run, expected=None)`")
    if not takes(ascore, 2):
        raise UsageError(
            f"{type(scorer).__name__}.ascore does not take (run, expected)", "write `async def ascore(self, run, expected=None)`"
        )


def _check_timeout(seconds: Any) -> None:
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise UsageError(f"timeout_seconds is a number above 0, or None, not {seconds!r}", "None lets an attempt take as long as it takes")


def _asks_the_same(one: Task, other: Task) -> bool:
    try:
        return canonical([one.input, one.expected]) == canonical([other.input, other.expected])
    except FingerprintError:
        return bool(cast(Any, one.input == other.input and one.expected == other.expected))
