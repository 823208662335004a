from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_attempt import context

from leyden.environments import CodeScorer, FingerprintError, RewardScorer, RunOutput, Score, Scorer, StopReason, Task, code_digest
from leyden.environments.scorers import digest_of
from leyden.environments.subjects import as_subject
from leyden.environments.trial import try_once
from leyden.errors import UsageError


def score(scorer: Scorer, content: Any = "x", expected: Any = None, **output: Any) -> Score:
    return asyncio.run(scorer.ascore(RunOutput(content, **output), expected))


def test_4_expected_reaches_the_function() -> None:
    scorer = CodeScorer(lambda run, expected: run.content == expected)
    assert score(scorer, "4", "4") == Score(1.0, True) and score(scorer, "4", "5") == Score(0.0, False)


@pytest.mark.parametrize(("number", "passed"), [(0.5, True), (0.49, False), (1, True), (0, False), (np.float32(0.75), True)])
def test_60_a_number_passes_from_the_threshold_on(number: Any, passed: bool) -> None:
    given = score(CodeScorer(lambda run, expected: number))
    assert given == Score(float(number), passed) and type(given.value) is float


@pytest.mark.parametrize("answer", [True, False, np.bool_(True)])
def test_60_a_bool_passes_whatever_the_threshold(answer: Any) -> None:
    assert score(CodeScorer(lambda run, expected: answer, pass_threshold=1.0)) == Score(float(answer), bool(answer))


def test_60_a_score_is_taken_as_it_is() -> None:
    own = Score(0.0, True, reason="because", detail={"a": 1}, dimensions={"safety": 1.0})
    assert score(CodeScorer(lambda run, expected: own)) is own


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (1.5, ValueError, "within 0 and 1"),
        (-0.1, ValueError, "within 0 and 1"),
        (float("nan"), ValueError, "within 0 and 1"),
        (None, TypeError, "is its `return` missing?"),
        ("1", TypeError, "gave a str"),
        ([1], TypeError, "gave a list"),
    ],
)
def test_60_anything_else_raises_so_that_the_attempt_is_unscored(answer: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        score(CodeScorer(lambda run, expected: answer))


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"value": 1.5}, ValueError),
        ({"value": float("nan")}, ValueError),
        ({"value": True}, TypeError),
        ({"value": "1"}, TypeError),
        ({"passed": 1}, TypeError),
        ({"passed": np.bool_(True)}, TypeError),
        ({"dimensions": {"safety": float("inf")}}, ValueError),
        ({"dimensions": {"safety": True}}, ValueError),
    ],
)
def test_60_a_score_is_checked_when_it_is_made(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Score(**{"value": 1.0, "passed": True, **given})


VARIABLE: ContextVar[str] = ContextVar("VARIABLE", default="unset")


def test_a_sync_function_sees_the_context_variables_of_its_attempt_and_changes_none() -> None:
    def fn(run: RunOutput, expected: Any) -> bool:
        seen = VARIABLE.get()
        VARIABLE.set("by the scorer")
        return seen == "by the attempt"

    async def main() -> Score:
        VARIABLE.set("by the attempt")
        given = await CodeScorer(fn).ascore(RunOutput("x"))
        assert VARIABLE.get() == "by the attempt"
        return given

    assert asyncio.run(main()).passed


def test_what_the_function_raises_comes_out() -> None:
    def broken(run: RunOutput, expected: Any) -> bool:
        raise KeyError("no such answer")

    with pytest.raises(KeyError, match="no such answer"):
        score(CodeScorer(broken))


class Raises:
    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    async def ascore(self, run: RunOutput, expected: Any = None) -> Score:
        raise self.error("boom")


def sync_raises(error: type[BaseException]) -> CodeScorer:
    def fn(run: RunOutput, expected: Any) -> bool:
        raise error("boom")

    return CodeScorer(fn)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, TimeoutError])
@pytest.mark.parametrize("make", [Raises, sync_raises])
def test_8_whatever_a_scorer_raises_leaves_the_attempt_unscored_and_the_run_alive(make: Any, error: type[BaseException]) -> None:
    async def agent(task: str) -> str:
        return task

    result = asyncio.run(try_once(as_subject(agent), make(error), 60, Task("x", id="t"), context(), 0)).result
    assert (result.stop_reason, result.score, result.error) == (StopReason.COMPLETED, None, f"scorer: {error.__name__}: boom")


@pytest.mark.parametrize("in_a_thread", [True, False])
def test_an_agent_that_exits_is_an_error_and_the_run_goes_on(in_a_thread: bool) -> None:
    def leaves(task: str) -> None:
        sys.exit("gone")

    async def aleaves(task: str) -> None:
        sys.exit("gone")

    subject = as_subject(leaves if in_a_thread else aleaves)
    result = asyncio.run(try_once(subject, RewardScorer(), 60, Task("x", id="t"), context(), 0)).result
    assert (result.stop_reason, result.error, result.error_type) == (StopReason.ERROR, "SystemExit: gone", "SystemExit")


def test_a_sync_function_runs_in_a_thread_and_async_ones_in_the_loop() -> None:
    def where(run: RunOutput, expected: Any) -> Score:
        return Score(1.0, True, reason=threading.current_thread().name)

    async def there(run: RunOutput, expected: Any) -> Score:
        return where(run, expected)

    class Called:
        async def __call__(self, run: RunOutput, expected: Any) -> Score:
            return where(run, expected)

    names = [score(CodeScorer(fn)).reason for fn in (where, there, Called(), lambda run, expected: there(run, expected))]
    assert names == ["leyden-scorer", "MainThread", "MainThread", "MainThread"]


def test_a_function_that_hangs_is_left_behind_when_its_time_is_over() -> None:
    release = threading.Event()

    async def main() -> None:
        task = asyncio.create_task(CodeScorer(lambda run, expected: release.wait(60)).ascore(RunOutput("x")))
        while not any(thread.name == "leyden-scorer" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_the_sync_twin_gives_the_same() -> None:
    assert CodeScorer(lambda run, expected: 0.75).score(RunOutput("x")) == Score(0.75, True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CodeScorer("exact"), "takes a function, not str"),
        (lambda: CodeScorer(str), "takes a function, not str"),
        (lambda: CodeScorer(lambda run: True), r"does not take \(run, expected\)"),
        (lambda: CodeScorer(lambda run, expected, more: True), r"does not take \(run, expected\)"),
        (lambda: CodeScorer(lambda run, expected: True, pass_threshold=2), "within 0 and 1"),
        (lambda: CodeScorer(lambda run, expected: True, pass_threshold=True), "within 0 and 1"),
        (lambda: RewardScorer(""), "a reward's name"),
    ],
)
def test_wrong_use_is_refused_when_the_scorer_is_made(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


# -- digests ---------------------------------------------------------------------------------------------------------


def close_to(limit: Any) -> Any:
    def scorer(run: RunOutput, expected: Any) -> bool:
        return abs(float(run.content) - expected) < limit

    return scorer


def with_default(limit: Any) -> Any:
    def scorer(run: RunOutput, expected: Any, limit: Any = limit) -> bool:
        return abs(float(run.content) - expected) < limit

    return scorer


@pytest.mark.parametrize("make", [close_to, with_default])
def test_61_what_a_closure_caught_and_what_defaults_hold_is_in_the_digest(make: Any) -> None:
    assert CodeScorer(make(0.1)).digest() == CodeScorer(make(0.1)).digest() != CodeScorer(make(0.2)).digest()


@pytest.mark.parametrize("make", [close_to, with_default])
def test_61_a_caught_value_that_cannot_be_written_down_raises(make: Any) -> None:
    with pytest.raises(FingerprintError, match="cannot be written down"):
        CodeScorer(make(threading.Lock())).digest()


def test_61_the_digest_knows_the_threshold() -> None:
    fn = close_to(0.1)
    assert CodeScorer(fn).digest() != CodeScorer(fn, pass_threshold=0.6).digest()


def test_61_code_without_a_source_raises() -> None:
    with pytest.raises(FingerprintError, match="source"):
        CodeScorer(eval("lambda run, expected: True")).digest()


MODULE = """
from collections import namedtuple
import LIBRARY
from leyden.environments import code_digest
from leyden.environments import CodeScorer, Score
LIMIT = 0.5
WORDS = ["a", "b"]
MADE = [LIMIT, 0]
CACHE = {}
Pair = namedtuple("Pair", "one two")
def helper(text):
    return text.strip()
def judge(run, expected):
    CACHE[run.content] = 1
    return helper(run.content) == expected and len(WORDS) > MADE[0] and LIBRARY.check(Pair(1, 2))
class Custom:
    def __init__(self, limit): self.limit = limit
    async def ascore(self, run, expected=None): return Score(1.0, helper(run.content) == "x")
"""
PRINT = """
import importlib, sys
from leyden.environments.scorers import CodeScorer, digest_of
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    print(CodeScorer(module.judge).digest(), digest_of(module.Custom(2)))
"""


def digests(directory: Path, *sources: str) -> list[tuple[str, str]]:
    """Of the two scorers of each module, taken in another process."""
    names = [f"scoring{number}" for number in range(len(sources))]
    for name, source in zip(names, sources, strict=True):
        (directory / f"{name}.py").write_text(source)
    done = subprocess.run([sys.executable, "-B", "-c", PRINT, *names], cwd=directory, capture_output=True, text=True, check=True)
    return [(first, second) for first, second in (line.split() for line in done.stdout.splitlines())]


def test_61_digests_are_the_same_in_every_process_and_follow_the_source_down_to_helpers_and_globals(tmp_path: Path) -> None:
    source = MODULE.replace("LIBRARY", "checks")
    for name, limit in (("checks", 2), ("others", 3)):
        (tmp_path / f"{name}.py").write_text(f"def check(pair): return len(pair) == {limit}\n")
    edits = [(".strip()", ".lower()"), ("LIMIT = 0.5", "LIMIT = 0.6"), ('["a", "b"]', '["a", "c"]'), ("> MADE", ">= MADE"),
             ("one two", "one three"), ("checks", "others")]  # fmt: skip
    first, same, helper, *own = digests(tmp_path, source, source, *(source.replace(*edit) for edit in edits))
    (tmp_path / "checks.py").write_text("def check(pair): return True\n")
    assert first == same and helper[0] != first[0] and helper[1] != first[1]
    assert all(changed[0] != first[0] and changed[1] == first[1] for changed in own)
    assert len({helper[0], first[0], *(changed[0] for changed in own)}) == 2 + len(own)
    moved, again = digests(tmp_path, source, source)
    assert moved == again and moved[0] != first[0] and moved[1] == first[1]  # what a module's name stands for was edited


def test_61_a_scorer_of_an_installed_package_is_known_by_its_source_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_digest, "_LIBRARIES", (str(tmp_path),))
    monkeypatch.syspath_prepend(tmp_path)
    taken = []
    module = MODULE.replace("LIBRARY", "json")
    for name, source in (("installed_a", module), ("installed_b", module.replace(".strip()", ".lower()")), ("installed_c", module)):
        (tmp_path / f"{name}.py").write_text(source)
        taken.append(CodeScorer(importlib.import_module(name).judge).digest())
    assert taken[0] == taken[2] != taken[1]


CACHE: dict[str, int] = {}


def caching(run: RunOutput, expected: Any) -> bool:
    CACHE[run.content] = 1
    return True


def test_61_a_cache_that_fills_changes_no_digest() -> None:
    before = CodeScorer(caching).digest()
    score(CodeScorer(caching), "filled")
    assert CACHE and CodeScorer(caching).digest() == before


def test_61_it_is_the_source_that_counts_and_not_the_name() -> None:
    def one(run: RunOutput, expected: Any) -> bool:
        return True

    first = digest_of(one)

    def one(run: RunOutput, expected: Any) -> bool:  # type: ignore[no-redef]
        return False

    assert digest_of(one) != first


def negated(fn: Any) -> Any:
    @functools.wraps(fn)
    def scorer(run: RunOutput, expected: Any) -> bool:
        return not fn(run, expected)

    return scorer


def unchanged(fn: Any) -> Any:
    @functools.wraps(fn)
    def scorer(run: RunOutput, expected: Any) -> bool:
        return fn(run, expected)

    return scorer


class Limited:
    """A decorator that is a class."""

    def __init__(self, fn: Any, limit: int) -> None:
        functools.update_wrapper(self, fn)
        self.limit = limit

    def __call__(self, run: RunOutput, expected: Any) -> bool:
        return bool(self.limit)


def judging(strict: bool) -> type:
    if strict:

        class Judging:
            def passes(self) -> bool:
                return False

    else:

        class Judging:  # type: ignore[no-redef]
            def passes(self) -> bool:
                return True

    return Judging


class Patched:
    limit = 1

    @functools.lru_cache  # noqa: B019
    def passes(self, text: str) -> bool:
        return caching(RunOutput(text), None)


# fmt: off
ON_ONE_LINE = [lambda run, expected: True, lambda run, expected: False, lambda run, expected: True]
def on_several_lines(first: bool) -> Any:
    return [lambda run, expected:
        expected == run.content, lambda run, expected:
        expected != run.content][not first]
# fmt: on


@pytest.mark.parametrize(
    "values",
    [
        ON_ONE_LINE,
        [on_several_lines(True), on_several_lines(False)],
        [caching, negated(caching), unchanged(caching)],
        [Limited(caching, 1), Limited(caching, 2), Limited(negated(caching), 1)],
        [judging(True)(), judging(False)()],
        [functools.partial(caching, 1), functools.partial(caching, 1.0), functools.partial(caching, True)],
        [functools.partial(caching, (1,)), functools.partial(caching, [1])],
    ],
    ids=lambda values: getattr(values[0], "__name__", type(values[0]).__name__),
)
def test_61_what_looks_alike_and_is_not_is_told_apart(values: list[Any]) -> None:
    digests = [digest_of(value) for value in values]
    assert len(set(digests)) == len(values) and digests == [digest_of(value) for value in values]


@pytest.mark.parametrize(("name", "value"), [("limit", 2), ("passes", lambda self, text: True)])
def test_61_a_class_is_known_as_it_is_now(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(Patched())
    monkeypatch.setattr(Patched, name, value)
    assert digest_of(Patched()) != before


def test_61_a_module_imported_inside_a_function_counts_by_its_text_and_a_library_is_not_imported_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def imports(run: RunOutput, expected: Any) -> bool:
        from imported_library.inner import nothing  # type: ignore[import-not-found]
        from imported_within import check  # type: ignore[import-not-found]

        return bool(check(run, nothing))

    library = tmp_path / "library"
    (library / "imported_library").mkdir(parents=True)
    (library / "imported_library" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.setattr(code_digest, "_LIBRARIES", (str(library),))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(library)
    taken = []
    for limit in (1, 2, 1):
        (tmp_path / "imported_within.py").write_text(f"def check(*_): return {limit}\n")
        taken.append(digest_of(imports))
    assert taken[0] == taken[2] != taken[1]


@dataclass
class Held:
    words: tuple[str, ...] = ("a",)


def decorated(word: str) -> Any:
    @contextlib.contextmanager
    def opened() -> Iterator[str]:
        yield word

    def scorer(run: RunOutput, expected: Any) -> bool:
        with opened() as now:
            return now in Held().words

    return scorer


def cached_scorer(limit: int) -> Any:
    @functools.lru_cache
    def helper(text: str) -> bool:
        return len(text) < limit

    return lambda run, expected: helper(run.content)


def test_61_a_cached_helper_is_known_by_what_it_wraps() -> None:
    assert digest_of(cached_scorer(1)) == digest_of(cached_scorer(1)) != digest_of(cached_scorer(2))


def test_61_dataclasses_and_what_libraries_decorate_have_a_digest() -> None:
    assert digest_of(decorated("a")) == digest_of(decorated("a")) != digest_of(decorated("b"))


def test_functions_that_name_each_other_have_a_digest() -> None:
    assert digest_of(even) == digest_of(even)


def even(n: int) -> bool:
    return n == 0 or odd(n - 1)


def odd(n: int) -> bool:
    return n != 0 and even(n - 1)


# -- the agent's own reward ------------------------------------------------------------------------------------------


def test_a_reward_is_the_score_and_the_other_numbers_are_its_dimensions() -> None:
    given = score(RewardScorer(), metrics={"reward": 0.5, "steps": 3.0})
    assert given == Score(0.5, True, dimensions={"steps": 3.0})
    assert score(RewardScorer("steps", pass_threshold=0.9), metrics={"steps": 0.8}) == Score(0.8, False)


@pytest.mark.parametrize(
    ("metrics", "said"), [({}, "no reward 'reward', only none"), ({"r": 1.0}, "only r"), ({"reward": 1.5}, "is 1.5, and")]
)
def test_a_reward_that_is_missing_or_no_score_leaves_the_attempt_unscored(metrics: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        score(RewardScorer(), metrics=metrics)


def test_the_digest_of_a_reward_scorer_knows_its_name_and_threshold() -> None:
    scorers = (RewardScorer(), RewardScorer("other"), RewardScorer(pass_threshold=0.6))
    assert len({scorer.digest() for scorer in scorers}) == 3
