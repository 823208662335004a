"""Answers that must have a form: JSON by a schema, calls of given tools. llguidance says before each token which ones may come next."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leyden.models.embedded.chat import CLOSE, OPEN

# As ``json.dumps`` and most models write it: an answer has no more white space than it needs, and comes back from any client the same.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammars:
    """Compiles grammars for one model's tokens. To make takes a second for 50,000 tokens; raises ``ValueError`` without llguidance."""

    def __init__(self, tokenizer: Any, vocab_size: int, stop_ids: frozenset[int]) -> None:
        try:
            import llguidance
        except ImportError:
            raise ValueError("the embedded engine needs llguidance for that: pip install llguidance") from None
        self._llguidance = llguidance
        self._vocab_size, self._stop_ids = vocab_size, sorted(stop_ids)
        self._tokens = llguidance.LLTokenizer(_described(tokenizer), n_vocab=vocab_size, eos_token=self._stop_ids)

    def compile(self, lark: str) -> str:
        """A grammar, checked. Raises ``ValueError`` for a schema that cannot be followed."""
        grammar = self._llguidance.LLMatcher.grammar_from_lark(lark)
        if error := self._llguidance.LLMatcher.validate_grammar(grammar, self._tokens):
            raise ValueError(f"the answer's form cannot be followed: {error.splitlines()[0][:300]}")
        return grammar

    def follow(self, grammar: str) -> Constraint:
        return Constraint(self._llguidance.LLMatcher(self._tokens, grammar, log_level=0), self._vocab_size, self._stop_ids)


class Constraint:
    """One sample's way through a grammar. Belongs to the scheduler's thread."""

    def __init__(self, matcher: Any, vocab_size: int, stop_ids: Sequence[int]) -> None:
        self._matcher, self._vocab_size = matcher, vocab_size
        self._ends = torch.zeros(vocab_size, dtype=torch.bool)
        self._ends[list(stop_ids)] = True

    def allowed(self) -> torch.Tensor:
        """Which tokens may come next: bool [V]. Nothing but the end, where the grammar is at its own or cannot go on."""
        if self._matcher.is_error() or self._matcher.is_stopped():
            return self._ends
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits[: self._vocab_size].astype(bool))
        return allowed if bool(allowed.any()) else self._ends

    def take(self, token: int) -> None:
        if not self._ends[token]:
            self._matcher.consume_token(token)


def answer_grammar(schema: dict[str, Any] | None, tools: Sequence[dict[str, Any]], *, must_call: bool, one_call: bool) -> str:
    """In llguidance's Lark: an answer by ``schema``, calls of ``tools``, or either of them. ``must_call``: calls only."""
    rules = []
    if schema is not None and not must_call:
        rules.append(f"answer: {_json(schema)}")
    if tools:
        names = [f"call_{number}" for number in range(len(tools))]
        rules.append("calls: call" if one_call else 'calls: call ("\\n" call)*')
        rules.append(f'call: "{OPEN}\\n" ({" | ".join(names)}) "\\n{CLOSE}"')
        rules += [f"{name}: {_json(_call_schema(tool['function']))}" for name, tool in zip(names, tools, strict=True)]
    start = " | ".join(rule.partition(":")[0] for rule in rules if rule.startswith(("answer", "calls:")))
    return "\n".join([f"start: {start}", *rules])


def _call_schema(function: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(function.get("parameters") or {"type": "object"})
    definitions = {name: arguments.pop(name) for name in ("$defs", "definitions") if name in arguments}  # references begin at the root
    properties = {"name": {"const": function["name"]}, "arguments": {"type": "object", **arguments}}
    return {"type": "object", "properties": properties, "required": ["name", "arguments"], "additionalProperties": False, **definitions}


def _json(schema: dict[str, Any]) -> str:
    return f"%json {json.dumps({**_closed(schema), 'x-guidance': _LAYOUT})}"


def _closed(schema: Any) -> Any:
    """An object has the properties that it names and no others, unless the schema says so: else a small model never comes to an end.
    OpenAI's strict mode and xgrammar, vLLM's default, read schemas so."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) if name in ("items", "prefixItems", "anyOf", "oneOf") else part for name, part in schema.items()}
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), dict):
            closed[name] = {key: _closed(part) for key, part in schema[name].items()}
    if "properties" in schema and not {"additionalProperties", "patternProperties", "allOf"} & set(schema):
        closed["additionalProperties"] = False
    return closed


def _described(tokenizer: Any) -> str:
    """The tokenizer as JSON. Some that were made from GGUF files have several decoders; the one that tells what the bytes are decides."""
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    described["truncation"] = described["padding"] = None
    steps = (described.get("decoder") or {}).get("decoders") or ()
    described["decoder"] = next((step for step in steps if step["type"] == "ByteLevel"), described.get("decoder"))
    return json.dumps(described)
