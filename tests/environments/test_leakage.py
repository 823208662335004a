import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leyden.environments.leakage import LeakageGuard, Leaked, LeakKind, Tokens, check_leakage
from leyden.environments.task import Task

LONG = "A farmer has 12 sheep and buys 34 more at the market. How many sheep does he have in the end?"
CHINESE = "今天北京的天气怎么样？"
EVALUATION = {
    "dev": [Task("What is the sum of 12 and 34?", id="sum"), Task("Compute 12 - 34", id="difference")],
    "frozen": [
        Task(LONG, id="sheep"),
        Task({"question": "Name the capital of France"}, id="json"),
        Task("今天北京的天气怎么样？", id="weather"),
    ],
}

LEAKS = {
    "What is the sum of 12 and 34?": (LeakKind.EQUAL, "sum"),
    "WHAT IS THE SUM OF 12 AND 34": (LeakKind.EQUAL, "sum"),
    "  What is\tthe sum\n of 12  and 34 ?!": (LeakKind.EQUAL, "sum"),
    "Ｗhat is the ｓum of １２ and ３４?": (LeakKind.EQUAL, "sum"),
    "What is the total of 12 and 34?": (LeakKind.REWORDED, "sum"),
    "What, then, is the sum of 12 and 34?": (LeakKind.REWORDED, "sum"),
    "What is sum of 12 and 34?": (LeakKind.REWORDED, "sum"),
    "compute 12-34": (LeakKind.EQUAL, "difference"),
    "* *What* is the `sum` of **12** and/34?": (LeakKind.EQUAL, "sum"),
    LONG.replace("farmer", "shepherd"): (LeakKind.REWORDED, "sheep"),
    f"Think first. {LONG} End with ### and the number.": (LeakKind.OVERLAP, "sheep"),
    "明天北京的天气怎么样？": (LeakKind.REWORDED, "weather"),
}


@pytest.mark.parametrize("text", LEAKS)
def test_what_is_or_nearly_is_an_evaluation_task_is_named_with_both_texts(text):
    report = check_leakage([Task("something else", id="other"), Task(text, id="mine")], EVALUATION)
    (leak,) = report.leaks
    kind, eval_id = LEAKS[text]
    assert (leak.kind, leak.train_id, leak.eval_id, leak.train_text) == (kind, "mine", eval_id, text)
    assert not report.ok and repr(leak.train_text) in str(leak) and repr(leak.eval_text) in str(leak) and leak.pool in str(leak)
    assert (report.n_train, report.n_eval) == (2, 5)
    with pytest.raises(Leaked, match="a training task is in an evaluation pool: mine is"):
        report.refuse()
    check_leakage([Task("something else")], EVALUATION).refuse()


NO_LEAKS = [
    "What is the sum of 12 and 35?", "What is the sum of 34 and 12?", "What is the sum of 1 and 234?", "Compute 12 + 34", "Compute 12 / 34",
    LONG.replace("34", "35"), LONG.replace("12", "120"), "What is the weather?", "", "???", "昨天上海的生活如何？",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_LEAKS)
def test_another_number_is_another_task(text):
    assert LeakageGuard(EVALUATION).find(Task(text)) is None


@pytest.mark.parametrize(
    "mine, theirs",
    [
        ("What is 12 + 34?", "What is **12** + 34?"),
        ("2 ** 3 and so on", "2**3 and so on"),
        ("What is 1,234 + 1?", "What is 1234+1?"),
        ("🙂🙂", "🙂🙂 "),
    ],
)
def test_another_spelling_is_the_same_task(mine, theirs):
    assert check_leakage([Task(mine)], {"dev": [Task(theirs)]}).leaks[0].kind is LeakKind.EQUAL


@pytest.mark.parametrize(
    "mine, theirs",
    [
        ("Simplify x + y now", "Simplify x * y now"),
        ("is x >= 5 here", "is x > 5 here"),
        ("is it <5 now", "is it >5 now"),
        ("50% of it now", "50 of it now"),
    ],
)
def test_another_operator_is_another_task(mine, theirs):
    report = check_leakage([Task(mine)], {"dev": [Task(theirs)]})
    assert report.ok and report.n_same_template == 0


def test_what_stands_beside_the_question_does_not_hide_it():
    rules = {"role": "system", "content": "You are a careful assistant"}
    held_out = [Task([rules, {"role": "user", "content": f"What is {n} + 34?"}], id=f"e{n}") for n in (12, 13)]
    guard = LeakageGuard(
        {"frozen": [*held_out, Task({"question": "Name a river in Vienna", "topic": "rivers of Europe", "target": "Danube"})]}
    )
    assert guard.find(Task({"question": "what is 13 + 34", "target": 47})).eval_id == "e13" and guard.n_tasks == 3
    assert guard.find(Task({"question": "Name a river in Vienna!", "target": "the Danube, which is long"})).kind is LeakKind.EQUAL
    assert guard.find(Task([rules, {"role": "user", "content": "What is 99 + 34?"}])) is None
    assert guard.find(Task({"question": "Name a lake near Salzburg", "topic": "rivers of Europe"})) is None
    shared = [Task({"topic": "rivers of Europe", "question": f"Name the river of {place}"}) for place in ("Rome now", "Paris, if any")]
    assert LeakageGuard({"dev": shared}).find(Task({"topic": "rivers of Europe", "question": "How long is the Po?"})) is None


def test_texts_without_a_word_share_no_template():
    assert check_leakage([Task("")], {"dev": [Task("")]}).n_same_template == 0


def test_a_thousand_near_misses_in_one_template_are_no_leaks_and_are_told():
    rng = random.Random(3)
    pairs = rng.sample([(a, b) for a in range(10, 100) for b in range(10, 100)], 2000)
    templates = (
        "What is the sum of {} and {}?",
        "A shop sells {} apples at {} cents each. How much does it earn when all are sold by evening?",
    )
    held_out = [Task(templates[n % 2].format(*pair), id=f"e{n}") for n, pair in enumerate(pairs[:1000])]
    training = [Task(templates[n % 2].format(*pair), id=f"t{n}") for n, pair in enumerate(pairs[1000:])]
    report = check_leakage(training, {"frozen": held_out})
    assert report.ok and report.n_same_template == 1000
    leaked = Task(held_out[7].input.upper(), id="leaked")
    assert [leak.eval_id for leak in check_leakage([*training, leaked], {"frozen": held_out}).leaks] == ["e7"]


WORDS = st.lists(st.sampled_from(["alpha", "beta", "gamma", "delta", "7", "12"]), min_size=3, max_size=12)


@given(WORDS, st.data())
def test_texts_share_a_digest_exactly_when_one_word_tells_them_apart(words, data):
    place = data.draw(st.integers(0, len(words) - 1))
    changed = [*words[:place], "omega", *words[place + 1 :]]
    one, other = Tokens.of(" ".join(words)), Tokens.of(" ".join(changed))
    assert bool(set(one.without_one_word()) & set(other.without_one_word())) == (not words[place].isdigit())
