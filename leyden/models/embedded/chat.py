"""Between text and tokens: chat template, incremental decoding, stop strings, Hermes tool calls."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"


_READS_PARTS = re.compile(r"\bin\s+\w+(\.content|\[['\"]content['\"]\])|\bcontent\s+is\s+(not\s+)?(string|iterable|sequence)")


def render(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, options: dict[str, Any] | None = None
) -> list[int]:
    """Prompt token ids [P] for a chat request. ``arguments`` stay the JSON text they are in the OpenAI API, so that a call which
    the model wrote is rendered to the very text it wrote. ``options``: further variables of the template. Raises ``ValueError`` when the
    template cannot render the messages."""
    from jinja2 import TemplateError

    reads_parts = bool(_READS_PARTS.search(tokenizer.chat_template))
    told = [_as_templates_read_it(message, reads_parts) for message in messages]
    try:
        encoded = tokenizer.apply_chat_template(
            told, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True, **(options or {})
        )
    except (TemplateError, TypeError) as error:
        raise ValueError(f"the chat template cannot render these messages: {error}") from None
    return list(encoded["input_ids"])


def _as_templates_read_it(message: dict[str, Any], reads_parts: bool) -> dict[str, Any]:
    """``reasoning`` by the name that templates know, and texts in parts as one where the template expects one, as vLLM does both."""
    content = message.get("content")
    if isinstance(content, list) and not reads_parts:
        message = {**message, "content": "\n".join(part["text"] for part in content)}
    if message.get("reasoning") is not None and message.get("reasoning_content") is None:
        message = {**message, "reasoning_content": message["reasoning"]}
    return message


@dataclass
class Detokenizer:
    """Turns sampled ids into text as they come. A character whose bytes are not all there yet is held back."""

    tokenizer: Any
    ids: list[int] = field(default_factory=list)
    _read: int = 0  # ids whose text has been given out
    _start: int = 0  # where the window that is decoded again begins: enough context for the next token's leading space

    def add(self, token: int) -> str:
        self.ids.append(token)
        before = self.tokenizer.decode(self.ids[self._start : self._read], skip_special_tokens=True)
        after = self.tokenizer.decode(self.ids[self._start :], skip_special_tokens=True)
        if after.endswith("�"):
            return ""
        self._start, self._read = self._read, len(self.ids)
        return after[len(before) :]

    def rest(self) -> str:
        """What was held back, when nothing more will come."""
        before = self.tokenizer.decode(self.ids[self._start : self._read], skip_special_tokens=True)
        after = self.tokenizer.decode(self.ids[self._start :], skip_special_tokens=True)
        self._start = self._read = len(self.ids)
        return after[len(before) :]


@dataclass
class StopStrings:
    """Cuts text at the first stop string and holds back what may become one."""

    stops: tuple[str, ...]
    held: str = ""
    met: str | None = None

    def add(self, text: str) -> tuple[str, bool]:
        """The text that can be given out, and whether a stop string was met."""
        if not self.stops:
            return text, False
        text = self.held + text
        cut, met = min(((position, stop) for stop in self.stops if (position := text.find(stop)) >= 0), default=(-1, None))
        if cut >= 0:
            self.held, self.met = "", met
            return text[:cut], True
        keep = max(held_back(text, stop) for stop in self.stops)
        self.held = text[len(text) - keep :] if keep else ""
        return text[: len(text) - keep], False


def held_back(text: str, marker: str) -> int:
    """The length of the longest end of ``text`` that is a beginning of ``marker``, but not all of it."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)


@dataclass(frozen=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # JSON text, exactly as the model wrote it

    def as_openai(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Split a reply into its content and its calls, ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` (the Hermes
    function-calling format). If any call is malformed, the whole reply is content: the agent sees what the model wrote."""
    content, found, rest = text.partition(OPEN)
    if not found:
        return text, []
    calls = []
    while True:
        body, closed, rest = rest.partition(CLOSE)
        call = _parse_call(body) if closed else None
        if call is None:
            return text, []
        calls.append(call)
        _, again, rest = rest.partition(OPEN)
        if not again:
            return content, calls


def _parse_call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):  # the latter for a thousand brackets
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not isinstance(value.get("arguments"), dict):
        return None
    return ToolCall(f"call_{uuid.uuid4().hex[:24]}", value["name"], _arguments_text(body, value["arguments"]))


def _arguments_text(body: str, arguments: dict[str, Any]) -> str:
    """The arguments as written, where the usual layout lets them be cut out, so that the next prompt repeats them to the token."""
    marker = '"arguments": '
    position = body.find(marker)
    if position >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(body, position + len(marker))
        except ValueError:
            value, end = None, 0
        if value == arguments:
            return body[position + len(marker) : end]
    return json.dumps(arguments, ensure_ascii=False)
