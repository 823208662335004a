"""What a chat template does with tools and turns, found by rendering it. Needs jinja2; loads no tokenizer and no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from leyden.errors import MissingExtra, UsageError

HERMES = Path(__file__).parent / "templates" / "hermes.jinja"
TEMPLATE = "chat_template.jinja"

_QUESTION, _ANSWER, _MORE, _RESULT, _THOUGHT, _TOOL = (
    "What is 17 + 25?",
    "It is 42.",
    "And 6 + 1?",
    "result 42",
    "carry the one",
    "probe_sum",
)
_USER = {"role": "user", "content": _QUESTION}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
]
_CALL = {"id": "call00001", "type": "function", "function": {"name": _TOOL, "arguments": {"a": 1725}}}
_CALLED: list[dict[str, Any]] = [
    _USER,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call00001", "name": _TOOL, "content": _RESULT},
]


@dataclass(frozen=True)
class TemplateReport:
    """``end_of_turn``: the text after an assistant's answer. ``prefix_preserving``: a turn's prompt, with what the model then wrote, begins
    the next turn's prompt, in text and after a tool call. ``keeps_thoughts``: so do thoughts in ``<think>`` tags."""

    knows_tools: bool
    generation_prompt: bool
    prefix_preserving: bool
    keeps_thoughts: bool
    end_of_turn: str


def read_template(directory: Path) -> str | None:
    """The template of a model directory: its own file, or where older versions of Transformers wrote it. None where there is none."""
    if (directory / TEMPLATE).is_file():
        return (directory / TEMPLATE).read_text()
    found = _settings(directory).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in found}
        found = named.get("tool_use") or named.get("default")
    return found if isinstance(found, str) else None


def inspect_template(directory: Path) -> TemplateReport:
    """Render two turns, with and without tools. Raises ``UsageError`` for no template or a broken one, ``MissingExtra`` without jinja2."""
    source = read_template(directory)
    if not source:
        raise UsageError(f"{directory} has no chat template", f"leyden models import {directory} --to DIRECTORY --chat-template hermes")
    template = Template(source, special_tokens(directory))
    first = template.render([_USER])
    closed = template.render([_USER, {"role": "assistant", "content": _ANSWER}], generation_prompt=False)
    second = template.render([_USER, {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _MORE}])
    thought = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"}
    thoughts = template.render([_USER, thought, {"role": "user", "content": _MORE}])
    with_tools, called = template.try_render([_USER], _TOOLS), template.try_render(_CALLED, _TOOLS)
    knows_tools = _TOOL in with_tools and _RESULT in called and "1725" in called
    return TemplateReport(
        knows_tools=knows_tools,
        generation_prompt=first != template.render([_USER], generation_prompt=False),
        prefix_preserving=second.startswith(first + _ANSWER) and (not knows_tools or called.startswith(with_tools)),
        keeps_thoughts=_THOUGHT in thoughts,
        end_of_turn=closed.rpartition(_ANSWER)[2],
    )


class Template:
    """Compiled as Transformers compiles it (transformers/utils/chat_template_utils.py): sandboxed, with the same few additions."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        try:
            from jinja2 import TemplateError, nodes
            from jinja2.ext import Extension, loopcontrols
            from jinja2.parser import Parser
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise MissingExtra("jinja2", "train") from None

        class Generation(Extension):
            """``{% generation %}`` marks what the model wrote; it changes no text."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Parser) -> list[nodes.Node]:
                next(parser.stream)
                return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))

        def raise_exception(message: str) -> None:
            raise TemplateError(message)

        def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
            return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)

        self._error = TemplateError
        self._special_tokens = special_tokens
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UsageError(f"the chat template does not compile: {error}", "take the one of the model's publisher") from None

    def render(self, messages: Sequence[dict[str, Any]], tools: Any = None, generation_prompt: bool = True, **more: Any) -> str:
        """Raises ``UsageError`` where the template refuses. ``more``: other names that a template may ask for."""
        told = {**self._special_tokens, **more, "messages": messages, "tools": tools, "add_generation_prompt": generation_prompt}
        try:
            return self._template.render(**told)
        except (self._error, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise UsageError(f"the chat template cannot render a conversation: {error}", "take the one of the model's publisher") from None

    def try_render(self, messages: Sequence[dict[str, Any]], tools: Any) -> str:
        """Empty where the template refuses: many do so for a role or a field that they do not know."""
        try:
            return self.render(messages, tools)
        except UsageError:
            return ""


def special_tokens(directory: Path) -> dict[str, str]:
    tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in _settings(directory).items()}
    return {name: value for name, value in tokens.items() if name.endswith("_token") and isinstance(value, str)}


def _settings(directory: Path) -> dict[str, Any]:
    path = directory / "tokenizer_config.json"
    return json.loads(path.read_text()) if path.is_file() else {}
