"""How a prompt follows what its attempt sampled: what counts as the same history, what is told of a changed one, and what it costs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leyden.audit import Continuity
from leyden.proxy import trail as trails
from leyden.proxy.continuity import Verdict, judge
from leyden.proxy.trail import Trail, common, preamble_of
from leyden.types import Generation

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "What is 12 + 34?"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "calculate", "arguments": '{"expression": "12 + 34"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "46"}
ANSWER = {"role": "assistant", "content": "The sum of the two is 46, as the calculator says."}
AGAIN = {"role": "user", "content": "And 1 + 1?"}


class Attempt:
    """Calls one after the other. Ids are made up: what follows a history of n ids is n, n + 1, …"""

    def __init__(self) -> None:
        self.trail = Trail()
        self.calls = 0

    def ask(
        self, messages: list[dict[str, Any]], answer: dict[str, Any] | None = None, prompt: list[int] | None = None, **body: Any
    ) -> Verdict:
        """The verdict; with an ``answer`` the call is remembered. ``prompt`` None: it goes on with whatever it should."""
        place = self.trail.place(preamble_of(body), messages)
        turn = place.goes_on
        read = prompt or ([*turn.ids(), 7, 8] if turn else [1, 2, 3])
        verdict = judge(place, read, self.trail)
        if answer is not None:
            self.calls += 1
            sampled = list(range(100 * self.calls, 100 * self.calls + 5))
            generation = Generation(
                id=f"g{self.calls}", call_id=f"c{self.calls}", rollout_id="r", attempt=1, model="m", started_at=0, latency=0.0,
                prompt_token_ids=read, response_token_ids=sampled, response=answer, finish_reason="stop",
            )  # fmt: skip
            self.trail.add(place, generation)
        return verdict


def test_a_conversation_that_goes_on_is_clean_and_names_the_call_it_follows() -> None:
    attempt = Attempt()
    assert attempt.ask([SYSTEM, ASKED], CALLED).continuity is Continuity.NEW
    verdict = attempt.ask([SYSTEM, ASKED, CALLED, RESULT], ANSWER)
    assert verdict.continuity is Continuity.CLEAN and verdict.follows and verdict.follows.generation_id == "g1"
    verdict = attempt.ask([SYSTEM, ASKED, CALLED, RESULT, ANSWER, AGAIN], ANSWER)
    assert verdict.continuity is Continuity.CLEAN and verdict.follows and verdict.follows.generation_id == "g2"


SAME = {
    "nulls": {**CALLED, "refusal": None, "function_call": None, "annotations": []},
    "order of keys": dict(reversed(CALLED.items())),
    "empty content": {**CALLED, "content": ""},
    "index of a call": {**CALLED, "tool_calls": [{"index": 0, **CALL}]},
    "arguments written anew": {
        **CALLED,
        "tool_calls": [{**CALL, "function": {**CALL["function"], "arguments": '{"expression":"12 + 34"}'}}],
    },
    "thinking left out": {key: value for key, value in CALLED.items() if key != "reasoning_content"},
}


@pytest.mark.parametrize("kept", SAME.values(), ids=SAME)
def test_what_clients_do_to_a_message_without_changing_it_is_no_fork(kept: dict[str, Any]) -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], {**CALLED, "reasoning_content": "Let me see."})
    assert attempt.ask([SYSTEM, ASKED, kept, RESULT]).continuity is Continuity.CLEAN


def test_a_text_in_one_part_is_the_same_text() -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, {"role": "user", "content": [{"type": "text", "text": ASKED["content"]}]}], ANSWER)
    parts = {"role": "assistant", "content": [{"type": "text", "text": ANSWER["content"]}]}
    assert attempt.ask([SYSTEM, ASKED, parts, AGAIN]).continuity is Continuity.CLEAN


def _calls(**function: str) -> dict[str, Any]:
    return {**CALLED, "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}]}  # type: ignore[dict-item]


FORKS = {
    "other arguments": (
        [SYSTEM, ASKED, _calls(arguments='{"expression":"12 + 35"}'), RESULT],
        "message 3 (assistant): arguments of tool call 1 changed: {'expression': '12 + 34'} → {'expression': '12 + 35'}",
    ),
    "arguments that are no JSON": (
        [SYSTEM, ASKED, _calls(arguments='{"expression": "12 + 34'), RESULT],
        """message 3 (assistant): arguments of tool call 1 changed: {'expression': '12 + 34'} → '{"expression": "12 + 34'""",
    ),
    "another tool": (
        [SYSTEM, ASKED, _calls(name="compute"), RESULT],
        "message 3 (assistant): name of tool call 1 changed: 'calculate' → 'compute'",
    ),
    "a call dropped": (
        [SYSTEM, ASKED, {"role": "assistant", "content": "12 + 34"}, RESULT],
        "message 3 (assistant): tool calls: 1 became 0",
    ),
    "the answer left out": ([SYSTEM, ASKED, AGAIN], "message 3 (assistant), the answer, was left out: user follows instead"),
    "the question edited": (
        [SYSTEM, {"role": "user", "content": "What is 12 + 35?"}, CALLED, RESULT],
        "message 2 (user): content changed at character 15: ' is 12 + 34?' → ' is 12 + 35?'",
    ),
    "a message put in": ([SYSTEM, AGAIN, ASKED, CALLED, RESULT], "1 message put before message 2 (user): 'And 1 + 1?'"),
    "the system message dropped": ([ASKED, CALLED, RESULT], "message 1 (system) was left out"),
    "all before the answer dropped": ([CALLED, RESULT], "message 1 (system) and the 1 after it were left out"),
}


@pytest.mark.parametrize(("messages", "changed"), FORKS.values(), ids=FORKS)
def test_an_agent_that_changes_its_history_forks_and_the_change_is_named(messages: list[dict[str, Any]], changed: str) -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], CALLED)
    verdict = attempt.ask(messages)
    assert verdict.continuity is Continuity.FORKED and verdict.follows and verdict.follows.generation_id == "g1"
    assert changed in (verdict.changed or "")


def test_other_tools_are_a_fork_too() -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], CALLED, tools=[{"a": 1}])
    verdict = attempt.ask([SYSTEM, ASKED, CALLED, RESULT], tools=[{"b": 1}])
    assert verdict.continuity is Continuity.FORKED and verdict.changed == "tools changed"


def test_an_answer_edited_late_forks_from_the_call_that_gave_it_not_from_an_earlier_one() -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], CALLED)
    attempt.ask([SYSTEM, ASKED, CALLED, RESULT], ANSWER)
    verdict = attempt.ask([SYSTEM, ASKED, CALLED, RESULT, {"role": "assistant", "content": "46."}, AGAIN])
    assert verdict.continuity is Continuity.FORKED and verdict.follows and verdict.follows.generation_id == "g2"


def test_ids_that_a_template_or_tokenizer_changed_are_realigned_at_the_first_that_differs() -> None:
    """rllm PR 272 (a KL that spikes), agent-lightning's page on retokenization (a curve that collapses): nobody was told."""
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], ANSWER)  # 1 2 3, then 100 … 104
    verdict = attempt.ask([SYSTEM, ASKED, ANSWER, AGAIN], prompt=[1, 2, 3, 100, 101, 55, 56, 7, 8])
    assert (verdict.continuity, verdict.differs_at) == (Continuity.REALIGNED, 5)
    assert (list(verdict.expected[1]), list(verdict.found[1])) == ([102], [55])
    shorter = attempt.ask([SYSTEM, ASKED, ANSWER, AGAIN], prompt=[1, 2, 3, 100])  # prime-rl 1334: an assertion trips
    assert (shorter.continuity, shorter.differs_at) == (Continuity.REALIGNED, 4)


def test_what_a_template_adds_after_a_length_stopped_answer_is_clean() -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], ANSWER)
    assert attempt.ask([SYSTEM, ASKED, ANSWER, AGAIN], prompt=[1, 2, 3, *range(100, 105), 9, 9]).continuity is Continuity.CLEAN


def test_parallel_conversations_of_one_attempt_do_not_mix() -> None:
    attempt, second = Attempt(), {"role": "user", "content": "Another question of a sub-agent"}
    attempt.ask([SYSTEM, ASKED], CALLED)
    assert attempt.ask([SYSTEM, second], ANSWER).continuity is Continuity.NEW
    first = attempt.ask([SYSTEM, ASKED, CALLED, RESULT], ANSWER)
    other = attempt.ask([SYSTEM, second, ANSWER, AGAIN])
    assert first.follows and first.follows.generation_id == "g1" and other.follows and other.follows.generation_id == "g2"
    assert first.continuity is other.continuity is Continuity.CLEAN


def test_the_same_question_again_is_another_sample_and_equal_answers_are_told_apart_by_their_ids() -> None:
    attempt = Attempt()
    attempt.ask([SYSTEM, ASKED], ANSWER)
    assert attempt.ask([SYSTEM, ASKED], ANSWER).continuity is Continuity.NEW
    for sampled in (1, 2):
        ids = [1, 2, 3, *range(100 * sampled, 100 * sampled + 5), 9]
        verdict = attempt.ask([SYSTEM, ASKED, ANSWER, AGAIN], prompt=ids)
        assert verdict.continuity is Continuity.CLEAN and verdict.follows and verdict.follows.generation_id == f"g{sampled}"


def test_worked_examples_in_a_first_request_are_nobodys_history() -> None:
    attempt = Attempt()
    own = {**CALLED, "tool_calls": [{**CALL, "id": "call_2"}]}
    assert attempt.ask([SYSTEM, ASKED, CALLED, RESULT, ANSWER, AGAIN], own).continuity is Continuity.NEW
    assert attempt.ask([SYSTEM, ASKED, CALLED, RESULT, ANSWER, {"role": "user", "content": "2 + 2?"}]).continuity is Continuity.NEW


def test_a_short_answer_that_is_given_often_is_not_taken_for_one_of_another_conversation() -> None:
    attempt, yes = Attempt(), {"role": "assistant", "content": "yes"}
    attempt.ask([SYSTEM, ASKED], yes)
    assert attempt.ask([{"role": "system", "content": "Other."}, AGAIN, yes, RESULT]).continuity is Continuity.NEW


def test_a_completion_goes_on_where_its_ids_do() -> None:
    attempt = Attempt()
    attempt.ask([], {"role": "assistant", "content": "46"})
    assert attempt.ask([], prompt=[1, 2, 3, *range(100, 105), 9]).continuity is Continuity.CLEAN
    assert attempt.ask([], prompt=[1, 2, 3, 100, 9]).continuity is Continuity.NEW


def long_conversation(turns: int, clean: bool) -> Trail:
    """Each turn adds 50 ids and a message; or a template that changes the id before the last answer's end, each time."""
    attempt, messages, prompt = Attempt(), [SYSTEM, ASKED], list(range(1000))
    for turn in range(turns):
        answer = {"role": "assistant", "content": f"answer number {turn}, and some words more"}
        attempt.ask(messages, answer, prompt=prompt)
        sampled = list(range(100 * attempt.calls, 100 * attempt.calls + 5))
        prompt = [*prompt, *(sampled if clean else sampled[:-1]), *range(50)]
        messages = [*messages, answer, {"role": "user", "content": f"question {turn}"}]
    return attempt.trail


@pytest.mark.parametrize("clean", [True, False])
def test_a_long_conversation_takes_memory_in_proportion_to_its_length(clean: bool) -> None:
    short, long = long_conversation(20, clean).size, long_conversation(160, clean).size
    assert long < 9 * short


def test_an_attempt_beyond_its_limit_keeps_its_latest_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "MAX_BYTES", 40_000)
    attempt = Attempt()
    for n in range(60):
        attempt.ask([{"role": "user", "content": f"question {n}"}], {"role": "assistant", "content": f"a long answer, number {n}"})
    assert attempt.trail.size <= 40_000 and "g60" in attempt.trail.turns and "g1" not in attempt.trail.turns
    again = [{"role": "user", "content": "question 59"}, {"role": "assistant", "content": "a long answer, number 59"}, AGAIN]
    assert attempt.ask(again).continuity is Continuity.CLEAN


def test_a_conversation_beyond_the_limit_by_itself_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trails, "MAX_BYTES", 20_000)
    trail = long_conversation(60, clean=True)
    last = trail.turns["g60"]
    assert len(last.ids()) == 1000 + 59 * 55 + 5 and last.answered.depth == 2 + 2 * 59 + 1


def test_a_trail_read_back_from_the_store_is_the_same() -> None:
    calls = []
    for n, (messages, answer, read, sampled) in enumerate(
        (
            ([SYSTEM, ASKED], CALLED, [1, 2, 3], [10, 11]),
            ([SYSTEM, ASKED, CALLED, RESULT], ANSWER, [1, 2, 3, 10, 11, 4], [12]),
        )
    ):
        calls.append(
            Generation(
                id=f"g{n}",
                call_id=f"c{n}",
                rollout_id="r",
                attempt=1,
                model="m",
                started_at=n,
                latency=0.0,
                prompt_token_ids=read,
                response_token_ids=sampled,
                response=answer,
                request={"messages": messages},
            )
        )
    trail = Trail()
    trail.load(calls)
    place = trail.place({}, [SYSTEM, ASKED, CALLED, RESULT, ANSWER, AGAIN])
    assert judge(place, [1, 2, 3, 10, 11, 4, 12, 99], trail).continuity is Continuity.CLEAN
    trail.load(calls)
    assert len(trail.turns) == 2


def test_the_common_beginning_is_found_to_the_id() -> None:
    from array import array

    dice = random.Random(0)
    for _ in range(200):
        one = array("i", [dice.randrange(3) for _ in range(dice.randrange(12))])
        other = array("i", [dice.randrange(3) for _ in range(dice.randrange(12))])
        expected = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        assert common(one, other) == expected
