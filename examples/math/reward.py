"""The reward of the math agent: is the number it marked with ``###`` the right one?

How an answer is read:

=========================  ======  ==========================================================
answer                     number  why
=========================  ======  ==========================================================
``### 12 ###``             12      the form the prompt asks for
``### 12``                 12      a missing closing mark is forgiven
``#### 12``                12      GSM8K's own mark: three or more ``#`` are one mark
``### 1 ### … ### 2 ###``  2       the last marked number wins
``### the sum is 12 ###``  12      the first number after the mark
``### 12 ### for 5 men``   12      a number between two marks on one line beats one after them
``### 1,234 ###``          1234    commas between groups of three digits
``### $5 ###``             5       a currency sign before the number
``### -3 ###``             -3
``### −3 ###``             -3      U+2212, the typographic minus
``### -$5 ###``            -5
``### 5.0 ###``            5
``### 12. ###``            12      the end of a sentence
``### .5 ###``             0.5
``### 1e6 ###``            1e6
``### 3/4 ###``            0.75    a fraction of two numbers; over zero: no number
``### nan ###``            none    neither are ``inf`` and numbers beyond a float's range
``12``                     none    without a mark there is no answer
``###`` or nothing         none
=========================  ======  ==========================================================
"""

from __future__ import annotations

import math
import re

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-9

_MARK = re.compile(r"#{3,}")
_MARKED = re.compile(r"#{3,}([^#\n]+)#{3,}")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s?[$€£]?\s?(?P<minus>-?)(?P<top>(?:{_DIGITS})(?:[eE][-+]?\d+)?)(?:\s*/\s*(?P<bottom>-?(?:{_DIGITS})))?"
)


def read_answer(text: str | None) -> float | None:
    """The last number that follows a ``###`` (the table above), or None."""
    text = (text or "").replace("\u2212", "-")
    after = _MARK.split(text)[1:]  # what stands before the first mark is no answer
    for segment in [*reversed(_MARKED.findall(text)), *reversed(after)]:
        if match := _NUMBER.search(segment):
            return _value(match)
    return None


def compute_reward(text: str | None, target: float) -> float:
    """1.0 if the marked number is the target within a relative 1e-6 (absolute 1e-9 around zero), else 0.0."""
    answer = read_answer(text)
    if answer is None:
        return 0.0
    return float(math.isclose(answer, target, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE))


def _value(match: re.Match[str]) -> float | None:
    value = float(match["top"].replace(",", ""))
    if match["bottom"] is not None:
        bottom = float(match["bottom"].replace(",", ""))
        if bottom == 0:
            return None
        value /= bottom
    if "-" in (match["sign"], match["minus"]):
        value = -value
    return value if math.isfinite(value) else None
