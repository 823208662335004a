"""One sample as it grows: its tokens, its text, and what of the text a stream has already shown."""

from __future__ import annotations

from typing import Any

from leyden.models.embedded import reasoning
from leyden.models.embedded.chat import CLOSE, OPEN, Detokenizer, StopStrings, held_back, parse_tool_calls
from leyden.models.embedded.engine import Token, TransformersEngine
from leyden.models.embedded.protocol import ChatRequest
from leyden.models.embedded.reasoning import Thought
from leyden.models.embedded.sampling import Sampled


class TextChoice:
    """A sample whose text is the answer."""

    def __init__(self, index: int, engine: TransformersEngine, stops: tuple[str, ...]) -> None:
        self.index = index
        self.text = ""
        self.sampled: list[Sampled] = []
        self.finish_reason: str | None = None
        self.tokenizer = engine.tokenizer
        self._detokenizer = Detokenizer(engine.tokenizer)
        self._stops = StopStrings(stops)

    @property
    def token_ids(self) -> list[int]:
        return [item.token for item in self.sampled]

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was met."""
        return self._stops.met

    def add(self, token: Token) -> bool:
        """Take a token; returns True when the text ended the choice before the model did."""
        self.sampled.append(token.sampled)
        piece = self._detokenizer.add(token.sampled.token)
        if token.reason is not None:
            piece += self._detokenizer.rest()
        text, stopped = self._stops.add(piece)
        self.text += text
        if stopped:
            self.finish_reason = "stop"
        elif token.reason is not None:
            self.text += self._stops.held
            self.finish_reason = token.reason
        return stopped


class ChatChoice(TextChoice):
    """A sample whose text is read as a message: thoughts, content, tool calls. ``inside``: the prompt has opened a thought."""

    def __init__(self, index: int, engine: TransformersEngine, request: ChatRequest, inside: bool) -> None:
        super().__init__(index, engine, request.stops)
        self.with_tools = request.with_tools
        self._one_call = request.with_tools and request.parallel_tool_calls is False
        self._thinks = engine.thinks and request.grammar is None
        self._inside = inside
        self._shown = 0
        self._shown_reasoning = 0

    def add(self, token: Token) -> bool:
        if super().add(token):
            return True
        if self._one_call and self.finish_reason is None and CLOSE in self.text and parse_tool_calls(self._thought().answer)[1]:
            self.finish_reason = "stop"  # a second call would be sampled and then not be told: better that it is not sampled
            return True
        return False

    def message(self) -> dict[str, Any]:
        thought = self._thought()
        content, calls = parse_tool_calls(thought.answer) if self.with_tools else (thought.answer, [])
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        if thought.reasoning:
            message["reasoning_content"] = thought.reasoning
        if calls:
            message["tool_calls"] = [call.as_openai() for call in calls]
            if self.finish_reason == "stop":
                self.finish_reason = "tool_calls"
        return message

    def delta(self) -> dict[str, Any]:
        """Text that a stream may show now: never part of what may become a tool call, which is parsed only when it is whole."""
        if self.finish_reason is not None:
            return {}
        thought = self._thought()
        delta: dict[str, Any] = {}
        known = len(thought.reasoning) - (0 if thought.over else held_back(thought.reasoning, reasoning.END))
        if known > self._shown_reasoning:
            delta["reasoning_content"] = thought.reasoning[self._shown_reasoning : known]
            self._shown_reasoning = known
        if thought.over is None:
            return delta
        end = thought.answer.find(OPEN) if self.with_tools else -1
        if end < 0:
            end = len(thought.answer) - (held_back(thought.answer, OPEN) if self.with_tools else 0)
        if end > self._shown:
            delta["content"] = thought.answer[self._shown : end]
            self._shown = end
        return delta

    def last_delta(self) -> dict[str, Any]:
        """What the finished message still has beyond the text already shown."""
        message = self.message()
        delta: dict[str, Any] = {}
        if rest := message.get("reasoning_content", "")[self._shown_reasoning :]:
            delta["reasoning_content"] = rest
        if rest := (message["content"] or "")[self._shown :]:
            delta["content"] = rest
        if "tool_calls" in message:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        return delta

    def _thought(self) -> Thought:
        return reasoning.split(self.text, self._inside) if self._thinks else Thought("", self.text, True)
