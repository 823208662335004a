from hypothesis import given
from hypothesis import strategies as st

from leyden.algorithm.rows import IGNORED, RowRefusal, RowsConfig, build_rows
from leyden.types import Triplet

EOS = 2
NEWLINE = 10


def triplet(name, prompt, response, reward=1.0, rollout="r1", attempt=1, finish="stop"):
    ids = {"rollout_id": rollout, "attempt": attempt, "generation_id": name}
    return Triplet(prompt_ids=prompt, response_ids=response, reward=reward, finish_reason=finish, **ids)


def build(triplets, **config):
    return build_rows(triplets, {"r1": "task-1"}, {EOS}, RowsConfig(**config))


def test_only_sampled_tokens_are_labelled():
    (row,), report = build([triplet("a", [5, 6, 7], [8, 9, EOS])])
    assert row.input_ids == [5, 6, 7, 8, 9, EOS]
    assert row.labels == [IGNORED] * 3 + [8, 9, EOS]
    assert row.attention_mask == [1] * 6
    assert (row.sampled_tokens, report.sampled_tokens, report.ended_by_eos) == (3, 3, 1)
    assert row.task == "task-1"


def test_turns_that_repeat_the_conversation_become_one_row():
    first = triplet("a", [5, 6], [8, EOS], finish="tool_calls")
    # The template's newline after the end-of-turn token was not sampled, nor was the tool's answer.
    second = triplet("b", [5, 6, 8, EOS, NEWLINE, 30, 31], [9, EOS])
    (row,), report = build([first, second])
    assert row.input_ids == [5, 6, 8, EOS, NEWLINE, 30, 31, 9, EOS]
    assert row.labels == [IGNORED, IGNORED, 8, EOS, IGNORED, IGNORED, IGNORED, 9, EOS]
    assert row.generation_ids == ("a", "b")
    assert (report.calls, report.rows, report.merged_calls, report.forks) == (2, 1, 1, 0)
    assert report.tokens_saved == 4


def test_a_turn_that_rewrites_history_is_a_fork():
    rows, report = build([triplet("a", [5, 6], [8, EOS]), triplet("b", [5, 7, 8, EOS, NEWLINE], [9, EOS])])
    assert [row.generation_ids for row in rows] == [("a",), ("b",)]
    assert (report.forks, report.merged_calls, report.tokens_saved) == (1, 0, 0)


def test_a_turn_continues_the_longest_conversation_it_repeats():
    choices = [triplet("a", [5], [8, EOS]), triplet("b", [5], [9, EOS])]  # n = 2: two answers to one prompt
    rows, _ = build([*choices, triplet("c", [5, 9, EOS, NEWLINE], [7, EOS])])
    assert [row.generation_ids for row in rows] == [("a",), ("b", "c")]


def test_a_change_of_reward_keeps_rows_apart():
    rows, _ = build([triplet("a", [5], [8, EOS], reward=0.0), triplet("b", [5, 8, EOS, NEWLINE], [7, EOS], reward=1.0)])
    assert [(row.generation_ids, row.reward) for row in rows] == [(("a",), 0.0), (("b",), 1.0)]


def test_attempts_never_merge():
    rows, report = build([triplet("a", [5], [8, EOS]), triplet("b", [5, 8, EOS], [7, EOS], attempt=2)])
    assert len(rows) == 2
    assert report.forks == 0


def test_each_refusal_has_its_reason():
    _, report = build(
        [
            triplet("a", [5], [8, EOS], reward=None, rollout="r1"),
            triplet("b", [5], [8, 9], finish="length", rollout="r2"),
            triplet("c", [5], [8, 9], finish="stop", rollout="r3"),
            triplet("d", [5] * 30, [8, EOS], rollout="r4"),
            triplet("e", [5], [], finish="length", rollout="r5"),
            triplet("f", [5], [8, EOS], rollout="r6"),
            triplet("g", [5], [8, 9], finish="tool_calls", rollout="r7"),
        ],
        max_tokens=20,
    )
    assert report.rows == 1
    assert report.refused == {
        RowRefusal.NO_REWARD: 1, RowRefusal.TRUNCATED: 1, RowRefusal.NO_EOS: 2, RowRefusal.TOO_LONG: 1, RowRefusal.EMPTY: 1,
    }  # fmt: skip


def test_truncated_rows_are_kept_when_asked():
    rows, report = build([triplet("b", [5], [8, 9], finish="length")], keep_truncated=True)
    assert len(rows) == 1
    assert report.ended_by_eos == 0


ids = st.lists(st.integers(3, 9), min_size=1, max_size=6)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=6), st.data())
def test_no_sampled_token_is_lost_or_invented(turns, data):
    """Whatever mixture of continuing and forking an attempt is, the labels are the sampled tokens, and unmasked inputs equal them."""
    conversation: list[int] = []
    triplets = []
    for i, (new, answer) in enumerate(turns):
        if data.draw(st.booleans()):
            conversation = []
        prompt = conversation + new
        response = [*answer, EOS]
        triplets.append(triplet(f"g{i}", prompt, response))
        conversation = prompt + response
    rows, report = build(triplets)
    assert sorted(label for row in rows for label in row.labels if label != IGNORED) == sorted(t for c in triplets for t in c.response_ids)
    assert sorted(g for row in rows for g in row.generation_ids) == sorted(c.generation_id for c in triplets)
    for row in rows:
        assert len(row.input_ids) == len(row.labels) == len(row.attention_mask)
        assert all(label in (IGNORED, token) for token, label in zip(row.input_ids, row.labels, strict=True))
        assert row.labels[-1] == EOS
    separate = sum(len(c.prompt_ids) + len(c.response_ids) for c in triplets)
    assert report.tokens + report.tokens_saved == separate
    assert report.calls == report.rows + report.merged_calls
