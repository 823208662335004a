"""Whether a training task is, or nearly is, a task of an evaluation pool.

Texts are compared as tokens: words without case, accents' encoding, spacing and punctuation; numbers and the operators between them whole.
A training task leaks if

* its tokens are those of the evaluation task (``EQUAL``),
* or they are but for one word, replaced, added or left out (``REWORDED``),
* or it holds at least ``overlap`` of the evaluation task's word 8-grams, and all of its numbers (``OVERLAP``).

**Another number is another task**: in each of the three, numbers and operators must be equal, and in the same order. So "What is 12 + 34?"
and "What is 13 + 34?" do not leak; how many training tasks share such a template with an evaluation task is told beside the leaks.
Another word is no other task: "the capital of France" beside "the capital of Spain" is a leak.

A task that is an object is compared as its JSON, and by the longest text of the evaluation task that is no answer, beside each text of the
training task: what stands beside the question does not hide it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from leyden.environments.task import Task
from leyden.errors import UsageError

NGRAM = 8  # tokens: what GPT-3's successors use to find evaluation texts in training data (arXiv 2005.14165, appendix C: 8 to 13)
OVERLAP = 0.6  # of an evaluation task's n-grams
SHORTEST = 12  # tokens a text must have to be sought by its n-grams: of shorter ones one word more or less is the measure
_ANSWERS = frozenset({"answer", "answers", "expected", "label", "solution", "target"})  # keys beside a question
WIDELY_SHARED = 64  # evaluation tasks with one n-gram: it is their template, and leads to none of them

_MASK = (1 << 61) - 1
_BASE = 1_000_003
_SHIFT = pow(_BASE, NGRAM, _MASK + 1)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
# Chinese and Japanese put no space between words: each sign is one.
_SIGN = "\u3040-\u30ff\u3400-\u9fff"
_TOKEN = re.compile(
    r"(?P<number>\d+(?:[.,]\d+)*)"
    rf"|(?P<word>[{_SIGN}]|[^\W\d_{_SIGN}]+(?:['’][^\W\d_]+)*)"
    r"|(?P<operator>[+*/=^%<>×÷±√]+|(?<=[\d)]) ?[-−–] ?(?=[\d(])|[-−](?=\d))"
)
# What an operator stands between; elsewhere the sign is a bullet, emphasis or a slash between words. A lone letter is a variable.
_OPERAND_BEFORE = re.compile(r"(?:[\d)\]]|(?<![^\W_])[^\W\d_])$")
_OPERAND_AFTER = re.compile(r"\s?(?:[-+√]?[\d(]|[^\W\d_](?![^\W_]))")
_PREFIX = frozenset("<>=√±")


class Leaked(UsageError):
    """What would be trained on is, or nearly is, what measures."""

    code = "leaked"


class LeakKind(StrEnum):
    EQUAL = "equal"
    REWORDED = "reworded"
    OVERLAP = "overlap"


@dataclass(frozen=True)
class Leak:
    """One training task beside the evaluation task that it gives away, both with their texts."""

    kind: LeakKind
    pool: str
    train_id: str | None
    eval_id: str | None
    train_text: str
    eval_text: str
    overlap: float = 1.0  # of n-grams; 1 for the other kinds

    def __str__(self) -> str:
        return f"{self.train_id} is {self.kind} to {self.eval_id} of {self.pool}: {self.train_text!r} beside {self.eval_text!r}"


@dataclass(frozen=True)
class LeakageReport:
    leaks: tuple[Leak, ...]
    n_train: int
    n_eval: int
    n_same_template: int  # training tasks that are an evaluation task with other numbers: for information, they are no leaks

    @property
    def ok(self) -> bool:
        return not self.leaks

    def refuse(self) -> None:
        """For who is about to train. Raises ``Leaked`` if anything leaked, naming the first with both texts."""
        if self.leaks:
            more = f" (and {len(self.leaks) - 1} more)" if len(self.leaks) > 1 else ""
            raise Leaked(f"a training task is in an evaluation pool: {self.leaks[0]}{more}", "take it out of training: leyden pools check")

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True)
class Tokens:
    words: tuple[str, ...]
    is_word: tuple[bool, ...]

    @classmethod
    def of(cls, text: str) -> Tokens:
        folded = unicodedata.normalize("NFKC", _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).casefold()))
        found = [match for match in _TOKEN.finditer(folded) if match.lastgroup != "operator" or _is_operator(match)]
        if not found and folded.strip():  # signs alone are a word: two such tasks are equal or have nothing in common
            return cls((folded.strip(),), (True,))
        return cls(tuple(map(_spelling, found)), tuple(match.lastgroup == "word" for match in found))

    @property
    def numbers(self) -> tuple[str, ...]:
        """Numbers and operators, in order."""
        return tuple(token for token, word in zip(self.words, self.is_word, strict=True) if not word)

    @cached_property
    def codes(self) -> list[int]:
        return [_code(token) for token in self.words]

    @cached_property
    def _before(self) -> list[int]:
        """The digest of the first n tokens, for each n: a polynomial, so that the digest of any part comes from two of them."""
        digests = [0]
        for code in self.codes:
            digests.append((digests[-1] * _BASE + code) & _MASK)
        return digests

    @property
    def whole(self) -> int:
        return self._before[-1]

    @property
    def template(self) -> int:
        """The same for two texts that differ in their numbers alone."""
        digest = 0
        for token, code, word in zip(self.words, self.codes, self.is_word, strict=True):
            digest = (digest * _BASE + (code if word or not token[0].isdigit() else 1)) & _MASK
        return digest

    @cached_property
    def grams(self) -> frozenset[int]:
        before = self._before
        return frozenset((before[at + NGRAM] - before[at] * _SHIFT) & _MASK for at in range(len(self.words) - NGRAM + 1))

    def without_one_word(self) -> Iterator[int]:
        """For each word, the digest of all the others: two texts that share one differ by that word alone. Linear in the length."""
        after, power = 0, 1
        for place in range(len(self.words) - 1, -1, -1):
            if self.is_word[place]:
                yield (self._before[place] * power + after) & _MASK
            after = (after + self.codes[place] * power) & _MASK
            power = (power * _BASE) & _MASK


@dataclass(frozen=True)
class _Known:
    pool: str
    id: str | None
    text: str
    tokens: Tokens


class LeakageGuard:
    """Holds evaluation tasks by pool, indexed; ``find`` takes time that does not grow with their number (but for shared n-grams)."""

    def __init__(self, pools: Mapping[str, Iterable[Task]], overlap: float = OVERLAP) -> None:
        self.overlap = overlap
        self.n_tasks = 0
        self._known: list[_Known] = []
        self._whole: dict[int, int] = {}
        self._reworded: dict[int, int] = {}
        self._grams: dict[int, list[int]] = {}
        self._templates: set[int] = set()
        held = [(pool, task, texts_of(task.input)) for pool, tasks in pools.items() for task in tasks]
        shared = Counter(text for *_, texts in held for text in set(texts[1:]))
        for pool, task, (whole, *parts) in held:
            self.n_tasks += 1
            self._add(pool, task, whole)
            longest = max(parts, key=len, default="")  # what is asked; beside it stand topics, levels, names of files
            if 1 <= shared[longest] <= 2:  # a text of more tasks is their instruction, and leads to none of them
                self._add(pool, task, longest)

    def as_dict(self) -> dict[str, Any]:
        """What an export records: which evaluation tasks it kept away from."""
        texts = sha256("\n".join(sorted(sha256(known.text.encode(errors="replace")).hexdigest() for known in self._known)).encode())
        return {
            "pools": sorted({known.pool for known in self._known}),
            "n": self.n_tasks,
            "sha256": texts.hexdigest(),
            "overlap": self.overlap,
        }

    def find(self, task: Task) -> Leak | None:
        return self.examine(task)[0]

    def examine(self, task: Task) -> tuple[Leak | None, bool]:
        """The nearest evaluation task, if ``task`` gives it away; and whether it is one but for the numbers."""
        same_template = False
        for text in texts_of(task.input):
            tokens = Tokens.of(text)
            same_template |= bool(tokens.words) and tokens.template in self._templates
            if found := self._nearest(tokens):
                kind, known, overlap = found
                return Leak(kind, known.pool, task.id, known.id, text, known.text, overlap), same_template
        return None, same_template

    def _add(self, pool: str, task: Task, text: str) -> None:
        tokens = Tokens.of(text)
        place = len(self._known)
        self._known.append(_Known(pool, task.id, text, tokens))
        self._whole.setdefault(tokens.whole, place)
        self._templates.add(tokens.template)
        self._reworded.setdefault(tokens.whole, place)
        for key in tokens.without_one_word():
            self._reworded.setdefault(key, place)
        if len(tokens.words) >= SHORTEST:
            for gram in tokens.grams:
                self._grams.setdefault(gram, []).append(place)

    def _nearest(self, tokens: Tokens) -> tuple[LeakKind, _Known, float] | None:
        if not tokens.words:
            return None
        place = self._whole.get(tokens.whole)
        if place is not None:
            return LeakKind.EQUAL, self._known[place], 1.0
        for key in (tokens.whole, *tokens.without_one_word()):
            place = self._reworded.get(key)
            if place is not None and len(self._known[place].tokens.words) > 2:  # two words that differ by one have little in common
                return LeakKind.REWORDED, self._known[place], 1.0
        return self._overlapping(tokens)

    def _overlapping(self, tokens: Tokens) -> tuple[LeakKind, _Known, float] | None:
        if len(tokens.words) < SHORTEST:
            return None
        postings = (self._grams.get(gram, ()) for gram in tokens.grams)
        near = {place for posting in postings if len(posting) <= WIDELY_SHARED for place in posting}
        best: tuple[LeakKind, _Known, float] | None = None
        for place in sorted(near):
            known = self._known[place]
            share = len(known.tokens.grams & tokens.grams) / len(known.tokens.grams)
            if share >= self.overlap and share > (best[2] if best else 0.0) and _holds(tokens.numbers, known.tokens.numbers):
                best = LeakKind.OVERLAP, known, share
        return best


def check_leakage(train_tasks: Iterable[Task], eval_pools: Mapping[str, Iterable[Task]], overlap: float = OVERLAP) -> LeakageReport:
    """Every training task that is, or nearly is, in one of ``eval_pools`` (name → tasks), each with the nearest evaluation task.

    100,000 training tasks against 10,000 take half a minute; only the evaluation tasks are held in memory.
    """
    guard = LeakageGuard(eval_pools, overlap)
    leaks: list[Leak] = []
    n_train = n_same_template = 0
    for task in train_tasks:
        n_train += 1
        leak, same_template = guard.examine(task)
        if leak is not None:
            leaks.append(leak)
        elif same_template:
            n_same_template += 1
    return LeakageReport(tuple(leaks), n_train, guard.n_tasks, n_same_template)


def texts_of(value: Any) -> list[str]:
    """A task's input as the texts that are compared: itself; or where it is no text, its JSON and each text in it of 3 words or more."""
    if isinstance(value, str):
        return [value]
    whole = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return [whole, *(text for text in _texts_in(value) if len(Tokens.of(text).words) > 2)]


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and value.get("role") in ("system", "developer"):
        return  # the same for many tasks
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _ANSWERS:
                yield from _texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts_in(item)


def _is_operator(match: re.Match[str]) -> bool:
    text, begin, end = match.string, match.start(), match.end()
    if match[0].strip() in ("-", "−", "–"):
        return True  # the pattern has looked beside it
    before = _OPERAND_BEFORE.search(text[max(0, begin - 8) : begin].rstrip(" *_`")) is not None  # **12** + 34
    if match[0] == "%":
        return before
    return (before or match[0][0] in _PREFIX) and _OPERAND_AFTER.match(text, end) is not None


def _spelling(match: re.Match[str]) -> str:
    if match.lastgroup == "number":
        return re.sub(r",(?=\d{3}(?!\d))", "", match[0])
    if match.lastgroup == "operator":
        return match[0].strip().replace("−", "-").replace("–", "-")
    return match[0].replace("’", "'")


def _holds(numbers: Sequence[str], wanted: Sequence[str]) -> bool:
    """``wanted`` stands in ``numbers``, one after the other."""
    return any(tuple(numbers[at : at + len(wanted)]) == tuple(wanted) for at in range(len(numbers) - len(wanted) + 1))


@lru_cache(maxsize=1 << 16)
def _code(token: str) -> int:
    return int.from_bytes(sha256(token.encode(errors="replace")).digest()[:8], "little") & _MASK
