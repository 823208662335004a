from hypothesis import given
from hypothesis import strategies as st

from leyden.algorithm.rows import Row
from leyden.algorithm.selection import NothingToLearn, SelectionConfig, select


def row(reward, task="t", body=0):
    return Row([1, body, 2], [-100, body, 2], reward, f"r{body}", 1, task, (f"g{body}",))


def rows_with(*rewards):
    return [row(reward, task=f"t{i}", body=i) for i, reward in enumerate(rewards)]


def test_the_top_fraction_is_kept_and_nothing_below_the_minimum():
    selection = select(rows_with(*[1.0] * 10, *[0.0] * 30), SelectionConfig(fraction=0.5))
    assert [r.reward for r in selection.rows] == [1.0] * 10
    assert (selection.report.below_fraction, selection.report.below_min_reward) == (20, 10)


def test_a_fraction_smaller_than_the_passing_part_cuts_it():
    selection = select(rows_with(*[1.0] * 30, *[0.0] * 10), SelectionConfig(fraction=0.5))
    assert len(selection.rows) == 20


def test_the_seed_decides_order_and_ties():
    rows = rows_with(*[1.0] * 40, 0.0)
    one, same, other = (select(rows, SelectionConfig(seed=s)).rows for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_duplicates_count_once_and_the_best_one_stays():
    rows = [*rows_with(*[1.0] * 10, 0.0), row(1.0, body=3)]
    selection = select(rows, SelectionConfig(fraction=1.0))
    assert (selection.report.duplicates, len(selection.rows)) == (1, 10)
    kept = select(rows, SelectionConfig(fraction=1.0, dedupe=False))
    assert (kept.report.duplicates, len(kept.rows)) == (0, 11)


def test_a_task_gives_no_more_than_its_cap():
    rows = [row(1.0, task=f"t{i % 3}", body=i) for i in range(30)] + [row(0.0, task="t0", body=99)]
    selection = select(rows, SelectionConfig(fraction=1.0, max_per_task=3))
    assert (len(selection.rows), selection.report.over_task_cap, selection.report.tasks) == (9, 21, 3)


def test_nothing_to_learn_has_a_reason_and_a_sentence():
    cases = {
        NothingToLearn.NO_ROWS: [],
        NothingToLearn.NONE_PASS: rows_with(*[0.0] * 20),
        NothingToLearn.NO_SPREAD: rows_with(*[1.0] * 20),
        NothingToLearn.TOO_FEW: rows_with(1.0, 1.0, *[0.0] * 20),
    }
    for reason, rows in cases.items():
        selection = select(rows, SelectionConfig())
        assert selection.nothing_to_learn == reason
        assert selection.sentence
        assert selection.rows == []


def test_spread_is_judged_on_all_scored_attempts_not_on_what_made_rows():
    rows = rows_with(*[1.0] * 20)  # the failing attempts were cut off, and made no rows
    assert select(rows, SelectionConfig(), rewards=[1.0] * 20 + [0.0] * 5).nothing_to_learn is None


def test_without_rows_it_still_says_that_nothing_passed():
    assert select([], SelectionConfig(), rewards=[0.0] * 8).nothing_to_learn == NothingToLearn.NONE_PASS


rewards = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=60)


@given(rewards, st.floats(0.05, 1.0), st.sampled_from([None, 1, 2]), st.booleans(), st.integers(0, 3))
def test_every_candidate_is_accounted_for(values, fraction, cap, dedupe, seed):
    rows = [row(value, task=f"t{i % 7}", body=i % 25) for i, value in enumerate(values)]
    config = SelectionConfig(fraction=fraction, max_per_task=cap, dedupe=dedupe, seed=seed)
    selection = select(rows, config)
    report = selection.report
    parts = report.kept + report.duplicates + report.below_fraction + report.below_min_reward + report.over_task_cap
    assert parts == report.candidates == len(rows)
    assert all(r.reward >= config.min_reward for r in selection.rows)
    if selection.nothing_to_learn:
        assert selection.rows == []
    else:
        assert len(selection.rows) == report.kept >= config.min_rows
        assert report.sampled_tokens == sum(r.sampled_tokens for r in selection.rows)
        left_out = [r.reward for r in rows if r not in selection.rows]
        if cap is None and not dedupe and left_out:
            assert max(left_out) <= max(r.reward for r in selection.rows)


def test_zero_rewards_end_in_a_sentence_that_says_so_and_not_in_a_loss_of_zero():
    """TRL 3452, ART 336."""
    selection = select(rows_with(*[0.0] * 20), SelectionConfig())
    assert selection.rows == [] and selection.sentence == "none of 20 attempts reached a reward of 0.5 (best: 0)"
