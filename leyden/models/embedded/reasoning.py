"""Thoughts in ``<think>`` tags, told apart from the answer; only for models whose chat template knows the tags."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BEGIN, END = "<think>", "</think>"


def thinks(tokenizer: Any) -> bool:
    return END in (tokenizer.chat_template or "")


def begun(prompt_text: str) -> bool:
    """Whether a prompt, or its end, ends inside of a thought."""
    return prompt_text.rstrip().endswith(BEGIN)


@dataclass(frozen=True)
class Thought:
    """A text so far, in two: what was thought, and what is said. ``over``: no more of the thought will come; None: nobody knows yet
    whether it is one."""

    reasoning: str
    answer: str
    over: bool | None


def split(text: str, inside: bool) -> Thought:
    """``inside``: the prompt has opened the thought already. White space is left as it was sampled."""
    if not inside:
        start = text.lstrip()
        if not start.startswith(BEGIN):
            return Thought("", text, None if BEGIN.startswith(start) else True)
        text = start[len(BEGIN) :]
    reasoning, ended, answer = text.partition(END)
    return Thought(reasoning, answer, bool(ended))
