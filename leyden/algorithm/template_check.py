"""Could the checkpoint being trained have read this prompt? If not, its row would teach it to go on from what it will never be shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

from leyden.errors import UsageError
from leyden.models.reading import Reader
from leyden.server.codec import redact_text
from leyden.types import Generation, Triplet

SHOWN = 40  # characters of each text in a sentence
_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id"}  # others (thoughts) are shown to a template by some engines only
_SHAPING = {
    "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents", "reasoning_effort", "truncate_prompt_tokens",
    "messages", "tools", "generation_prompt",
}  # fmt: skip


class TemplateCheck:
    """Asked of a row's first call, whose whole prompt was rendered from its messages: the rest of the row only extends it.

    Where no tool is involved, the checkpoint's template and tokenizer must make the same ids of the same messages. Engines write tools
    and calls as JSON in ways of their own (order, spaces, fields that are null); with them, what follows the last message must be the
    same text (how its turn is closed and the model's is opened), and a template that shows no tool cannot have made a prompt that
    does. Nothing is said of a prompt put together from sampled ids, one without messages (completions), with more than text in them, shaped
    by other parameters of the request, or with the time in its template.
    """

    def __init__(self, reader: Reader, generations: Iterable[Generation]) -> None:
        self._reader = reader
        self._generations: Mapping[str, Generation] = {generation.id: generation for generation in generations}

    def __call__(self, opening: Triplet) -> str | None:
        """What differs, for a person; None for nothing."""
        generation = self._generations.get(opening.generation_id)
        messages = generation.request.get("messages") if generation else None
        if generation is None or not messages or not self._is_rendered(generation) or not all(map(_is_plain, messages)):
            return None
        tools = generation.request.get("tools") or None
        try:
            text = self._render(messages, tools, generation.request.get("chat_template_kwargs") or {})
        except UsageError as error:
            return error.message
        if tools or any(message.get("tool_calls") for message in messages):
            return self._compare_ends(opening.prompt_ids, text, messages, tools)
        return self._compare(opening.prompt_ids, text)

    def _render(self, messages: list[dict[str, Any]], tools: list[Any] | None, more: dict[str, Any]) -> str:
        """Engines differ in what they hand a template: arguments as the text they came as or as objects, no content as null or as none."""
        try:
            return self._reader.render(messages, tools, **more)
        except UsageError:
            return self._reader.render([_with_objects(message) for message in messages], tools, **more)

    def _is_rendered(self, generation: Generation) -> bool:
        source = self._reader.source
        spliced = generation.audit is not None and generation.audit.exact and generation.audit.follows is not None
        shaped = _SHAPING & {*generation.sampling, *(generation.request.get("chat_template_kwargs") or ())}
        return source is not None and "strftime_now" not in source and not spliced and not shaped

    def _compare(self, found: list[int], text: str) -> str | None:
        expected = self._reader.ids(text)
        if found == expected:
            return None
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(found, expected, strict=False)))
        return _sentence(f"from token {same}", self._reader.text(found[same:]), self._reader.text(expected[same:]))

    def _compare_ends(self, ids: list[int], text: str, messages: list[dict[str, Any]], tools: list[Any] | None) -> str | None:
        found = self._reader.text(ids)
        names = [name for tool in tools or () if (name := (tool.get("function") or {}).get("name"))]
        unseen = next((name for name in names if name in found and name not in text), None)
        if unseen is not None:
            return f"the prompt shows the tool {unseen}, which the checkpoint's template leaves out"
        last = (messages[-1].get("content") or "").strip()
        if not last or last not in found or last not in text:
            return None
        ends = found.rpartition(last)[2], text.rpartition(last)[2]
        return None if ends[0] == ends[1] else _sentence("after the last message", *ends)


def _is_plain(message: dict[str, Any]) -> bool:
    told = {name for name, value in message.items() if value is not None}
    return told <= _FIELDS and isinstance(message.get("content"), str | None)


def _with_objects(message: dict[str, Any]) -> dict[str, Any]:
    """As vLLM hands it to a template. Raises ``UsageError`` for arguments that are no JSON."""
    try:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or ()
        ]
    except (KeyError, TypeError, ValueError):
        raise UsageError("the arguments of a call are no JSON, and the chat template takes no text") from None
    return message | {"content": message.get("content") or ""} | ({"tool_calls": calls} if calls else {})


def _sentence(where: str, found: str, expected: str) -> str:
    found, expected = (redact_text(text[: 10 * SHOWN])[:SHOWN] for text in (found, expected))  # ids spell secrets out
    return f"{where} it reads {found!r}, and the checkpoint's template says {expected!r}"
