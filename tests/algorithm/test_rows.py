import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.algorithm.refusals import Refusal
from leyden.algorithm.rows import IGNORED, RowsConfig, build_rows
from leyden.types import Triplet

EOS = 2
NEWLINE = 10


def triplet(name, prompt, response, reward=1.0, rollout="r1", attempt=1, finish="stop", checkpoint=None):
    ids = {"rollout_id": rollout, "attempt": attempt, "generation_id": name, "checkpoint": checkpoint}
    return Triplet(prompt_ids=prompt, response_ids=response, reward=reward, finish_reason=finish, **ids)


def build(triplets, **config):
    built = build_rows(triplets, {"r1": "task-1"}, {EOS}, RowsConfig(**config))
    return built.rows, built.report


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


def test_what_two_checkpoints_said_is_never_one_row():
    """A row names one: the other's tokens would count as its own."""
    own, other = triplet("a", [5], [8, EOS], checkpoint="v1"), triplet("b", [5, 8, EOS, NEWLINE], [7, EOS], checkpoint="v0")
    rows, report = build([own, other, triplet("c", [5, 8, EOS, 30], [9, EOS], checkpoint="v1")])
    assert [(row.generation_ids, row.checkpoint) for row in rows] == [(("a", "c"), "v1"), (("b",), "v0")] and report.forks == 1


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
        Refusal.NO_REWARD: 1, Refusal.TRUNCATED: 1, Refusal.NO_EOS: 2, Refusal.TOO_LONG: 1, Refusal.EMPTY: 1,
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


# -- long attempts and many conversations -------------------------------------------------------------------------------


def turns(n, prefix=(5, 6), start=0, question=(20,) * 3):
    """A conversation of n calls that repeat it word for word."""
    history, made = [*prefix], []
    for number in range(n):
        history += question
        made.append(triplet(f"{prefix[0]}-{start + number}", list(history), [8, 9, EOS]))
        history += [8, 9, EOS, NEWLINE]
    return made


def test_two_hundred_turns_are_one_row():
    (row,), report = build(turns(200), max_tokens=10_000)
    assert len(row.generation_ids) == 200 and row.sampled_tokens == 600
    assert report.tokens_saved == sum(len(c.prompt_ids) + 3 for c in turns(200)) - len(row.input_ids)


def test_a_conversation_that_never_forks_is_not_hashed(monkeypatch):
    import leyden.algorithm.conversations as conversations

    monkeypatch.delattr(conversations.hashlib, "blake2b")
    (conversation,) = conversations.follow(turns(20))
    assert len(conversation.calls) == 20
    with pytest.raises(AttributeError):
        conversations.follow([*turns(2), triplet("fork", [9], [9, EOS])])


def test_the_work_grows_with_the_tokens_and_not_with_the_number_of_conversations(monkeypatch):
    """Each prompt is hashed once, whatever it could go on with: an agent that rewrites its history each turn forks each turn."""
    import leyden.algorithm.conversations as conversations

    hashed = 0

    class Counting:
        def __init__(self, inner):
            self.inner = inner

        def update(self, data):
            nonlocal hashed
            hashed += memoryview(data).nbytes
            self.inner.update(data)

        def digest(self):
            return self.inner.digest()

    real = conversations.hashlib.blake2b
    monkeypatch.setattr(conversations.hashlib, "blake2b", lambda **options: Counting(real(**options)))
    calls = [triplet(f"g{n}", [n + 3, *[20] * 300], [8, EOS]) for n in range(60)]
    assert len(conversations.follow(calls)) == 60
    assert hashed == 8 * sum(len(call.prompt_ids) + len(call.response_ids) for call in calls)


def test_agents_that_take_turns_get_a_row_each():
    one, other = turns(3, prefix=(5, 6)), turns(3, prefix=(7, 6))
    rows, report = build([call for pair in zip(one, other, strict=True) for call in pair])
    assert [row.generation_ids for row in rows] == [("5-0", "5-1", "5-2"), ("7-0", "7-1", "7-2")]
    assert (report.forks, report.merged_calls) == (1, 4)


def test_two_equal_answers_of_one_prompt_are_each_gone_on_with():
    same = [triplet("a", [5], [8, EOS]), triplet("b", [5], [8, EOS])]
    later = [triplet("c", [5, 8, EOS, 30], [9, EOS]), triplet("d", [5, 8, EOS, 31], [9, EOS])]
    rows, _ = build([*same, *later])
    assert [row.generation_ids for row in rows] == [("a", "c"), ("b", "d")]


def test_a_prompt_that_does_not_extend_the_last_one_is_a_fork_and_not_an_error():
    """rllm 352 (KeyError on a trajectory that does not add up) and prime-rl 1334 (a prefix assertion trips)."""
    rows, report = build([*turns(2), triplet("short", [5], [9, EOS]), triplet("other", [9, 9], [9, EOS])])
    assert [row.generation_ids for row in rows] == [("5-0", "5-1"), ("short",), ("other",)]
    assert report.forks == 2


THINK, UNTHINK = 40, 41


def test_thoughts_that_were_sampled_are_labelled_and_a_history_without_them_is_another_row():
    """slime pull request 330 (the mask dropped reasoning), TRL 6361 (a think block was mangled): ids are never made from text again."""
    first = triplet("a", [5], [THINK, 8, UNTHINK, 9, EOS], finish="tool_calls")
    second = triplet("b", [5, 9, EOS, NEWLINE, 30], [7, EOS])  # the template strips what was thought
    rows, _ = build([first, second])
    assert [row.labels for row in rows] == [[IGNORED, THINK, 8, UNTHINK, 9, EOS], [IGNORED] * 5 + [7, EOS]]


# -- cut, and not cut -------------------------------------------------------------------------------------------------------


def test_a_row_that_is_too_long_is_refused_unless_it_may_be_cut_after_a_turn():
    calls = turns(4)
    ends = [len(call.prompt_ids) + 3 for call in calls]
    _, report = build(calls, max_tokens=ends[2] + 1)
    assert (report.rows, report.refused) == (0, {Refusal.TOO_LONG: 1})
    (row,), report = build(calls, max_tokens=ends[2] + 1, truncate="turns")
    assert len(row.input_ids) == ends[2] and row.generation_ids == ("5-0", "5-1", "5-2")
    assert (report.cut_calls, report.merged_calls, report.refused) == (1, 2, {})


def test_mask_and_labels_are_cut_with_the_ids():
    """TRL pull request 4976, unsloth 2330."""
    (row,), _ = build(turns(4), max_tokens=20, truncate="turns")
    assert len(row.input_ids) == len(row.labels) == len(row.attention_mask) <= 20
    assert all(label in (IGNORED, token) for token, label in zip(row.input_ids, row.labels, strict=True))


def test_no_cut_leaves_a_row_without_a_label():
    """unsloth 1128, TRL 6668: all labels -100, and a loss of exactly 0."""
    calls = [triplet("a", [5] * 30, [8, EOS]), triplet("b", [6], [8, EOS])]
    rows, report = build(calls, max_tokens=20, truncate="turns")
    assert [row.generation_ids for row in rows] == [("b",)]
    assert report.refused == {Refusal.TOO_LONG: 1}


@given(st.integers(1, 6), st.integers(2, 60))
def test_whatever_is_kept_of_a_cut_row_ends_in_what_was_sampled(n, max_tokens):
    built = build_rows(turns(n), {}, {EOS}, RowsConfig(max_tokens=max_tokens, truncate="turns"))
    for row in built.rows:
        assert row.labels[-1] == EOS and len(row.labels) <= max_tokens
    apart = sum(len(entry.generation_ids) for entry in built.quarantined)
    assert built.report.rows + built.report.merged_calls + apart == n


def test_tokens_that_close_a_turn_cut_off_at_its_limit_are_not_learnt():
    """The template writes the end of turn that the model did not say. Learning it would teach to stop where the limit was."""
    stopped = triplet("a", [5, 6], [8, 9], finish="length")
    after = triplet("b", [5, 6, 8, 9, EOS, NEWLINE, 30], [7, EOS])
    (row,), _ = build([stopped, after], keep_truncated=True)
    assert row.input_ids == [5, 6, 8, 9, EOS, NEWLINE, 30, 7, EOS]
    assert row.labels == [IGNORED, IGNORED, 8, 9, IGNORED, IGNORED, IGNORED, 7, EOS]
    said = triplet("a", [5, 6], [8, 9, EOS])  # and where the model said it, it is
    (row,), _ = build([said, after])
    assert row.labels == [IGNORED, IGNORED, 8, 9, EOS, IGNORED, IGNORED, 7, EOS]


def test_a_call_may_end_where_its_request_asked_to_stop():
    stop = 50
    by_id = triplet("a", [5], [8, stop]).model_copy(update={"stops": (stop,)})
    by_text = triplet("b", [6], [8, 9]).model_copy(update={"stops": ("Observation:",)})
    rows, report = build([by_id, by_text, triplet("c", [7], [8, stop])])
    assert [row.generation_ids for row in rows] == [("a",), ("b",)]
    assert report.refused == {Refusal.NO_EOS: 1}


def test_a_missing_finish_reason_is_never_taken_for_stop():
    """eliza 25157; and 24835: what stopped at its limit is refused."""
    _, report = build([triplet("a", [5], [8, EOS], finish=None), triplet("b", [6], [8, EOS], finish="length")])
    assert report.refused == {Refusal.FINISH_UNKNOWN: 1, Refusal.TRUNCATED: 1}
    _, report = build([triplet("a", [5], [8, EOS], finish=None)], keep_truncated=True)
    assert report.refused == {Refusal.FINISH_UNKNOWN: 1}


def test_an_answer_that_a_filter_cut_is_no_whole_answer():
    _, report = build([triplet("a", [5], [8, 9], finish="content_filter")])
    assert report.refused == {Refusal.TRUNCATED: 1}


def test_a_call_that_sampled_nothing_does_not_take_its_conversation_with_it():
    """ART 127: a mask of zeros only."""
    first, second = turns(2)
    rows, report = build([first, triplet("silent", second.prompt_ids, [], finish="length"), second])
    assert [row.generation_ids for row in rows] == [("5-0", "5-1")]
    assert report.refused == {Refusal.EMPTY: 1}


def test_prompts_are_never_labelled():
    """open-r1 517."""
    for row in build(turns(5), max_tokens=1000)[0]:
        told = [(token, label) for token, label in zip(row.input_ids, row.labels, strict=True) if label != IGNORED]
        assert {token for token, _ in told} == {8, 9, EOS} and all(token == label for token, label in told)


def test_rows_of_any_lengths_become_a_dataset_without_ragged_columns(tmp_path):
    """unsloth 2270, 2154, 1017."""
    pytest.importorskip("pyarrow")
    from leyden.algorithm.dataset import read_rows, write_rows

    rows, _ = build([triplet("a", [5], [8, EOS]), *turns(3, prefix=(7, 7)), triplet("c", [6] * 9, [EOS])], max_tokens=1000)
    write_rows(tmp_path / "rows.arrow", rows)
    assert read_rows(tmp_path / "rows.arrow") == rows
    assert all(len(row.input_ids) == len(row.labels) == len(row.attention_mask) for row in rows)
