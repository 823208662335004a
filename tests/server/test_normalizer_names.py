"""One span of each convention, as its instrumentation writes it, and the columns that are read out of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leyden.server.normalizer import NORMALIZER, normalize

COLUMNS = {
    "operation", "model", "provider", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "finish_reason", "tool_name",
    "agent_name", "conversation_id", "error_type", "normalizer",
}  # fmt: skip

CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "gen_ai, a chat": (
        "chat gpt-5",
        {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "gpt-5",
            "gen_ai.response.model": "gpt-5-2026-01-01", "gen_ai.usage.input_tokens": 100, "gen_ai.usage.output_tokens": 50,
            "gen_ai.usage.cache_read.input_tokens": 80, "gen_ai.usage.reasoning.output_tokens": 30,
            "gen_ai.response.finish_reasons": ["stop", "length"], "gen_ai.conversation.id": "c-1",
        },
        {
            "operation": "chat", "provider": "openai", "model": "gpt-5-2026-01-01", "input_tokens": 100, "output_tokens": 50,
            "cached_tokens": 80, "reasoning_tokens": 30, "finish_reason": "stop", "conversation_id": "c-1",
        },
    ),
    "gen_ai, a tool": (
        "execute_tool add", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "add", "error.type": "timeout"},
        {"operation": "execute_tool", "tool_name": "add", "error_type": "timeout"},
    ),
    "gen_ai, a tool named by its span alone": (
        "execute_tool add", {"gen_ai.operation.name": "execute_tool"}, {"operation": "execute_tool", "tool_name": "add"},
    ),
    "gen_ai, an agent": (
        "invoke_agent Math", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "Math"},
        {"operation": "invoke_agent", "agent_name": "Math"},
    ),
    "gen_ai as it was": (
        "chat",
        {"gen_ai.operation.name": "chat", "gen_ai.system": "anthropic", "gen_ai.request.model": "claude", "gen_ai.usage.prompt_tokens": 7,
         "gen_ai.usage.completion_tokens": "8"},
        {"operation": "chat", "provider": "anthropic", "model": "claude", "input_tokens": 7, "output_tokens": 8},
    ),
    "OpenInference, a call": (
        "ChatCompletion",
        {
            "openinference.span.kind": "LLM", "llm.model_name": "gpt-4o", "llm.provider": "azure", "llm.system": "openai",
            "llm.token_count.prompt": 11, "llm.token_count.completion": 12, "llm.token_count.prompt_details.cache_read": 3,
            "llm.token_count.completion_details.reasoning": 4, "llm.finish_reason": "tool_calls", "session.id": "s-1",
        },
        {
            "operation": "chat", "model": "gpt-4o", "provider": "azure", "input_tokens": 11, "output_tokens": 12, "cached_tokens": 3,
            "reasoning_tokens": 4, "finish_reason": "tool_calls", "conversation_id": "s-1",
        },
    ),
    "OpenInference, a tool": (
        "search", {"openinference.span.kind": "TOOL", "tool.name": "search"}, {"operation": "execute_tool", "tool_name": "search"},
    ),
    "OpenInference, an agent": (
        "Agent", {"openinference.span.kind": "AGENT", "graph.node.id": "Triage"}, {"operation": "invoke_agent", "agent_name": "Triage"},
    ),
    "OpenInference, an embedding": (
        "embed", {"openinference.span.kind": "EMBEDDING", "embedding.model_name": "e5"}, {"operation": "embeddings", "model": "e5"},
    ),
    "OpenInference, a chain": ("c", {"openinference.span.kind": "CHAIN"}, {"operation": "chain"}),
    "Traceloop, a call": (
        "openai.chat",
        {
            "gen_ai.system": "openai", "llm.request.type": "chat", "gen_ai.request.model": "gpt-4", "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 6, "gen_ai.usage.cache_read_input_tokens": 2, "gen_ai.usage.reasoning_tokens": 1,
            "gen_ai.completion.0.finish_reason": "stop", "traceloop.association.properties.session_id": "t-1",
        },
        {
            "operation": "chat", "provider": "openai", "model": "gpt-4", "input_tokens": 5, "output_tokens": 6, "cached_tokens": 2,
            "reasoning_tokens": 1, "finish_reason": "stop", "conversation_id": "t-1",
        },
    ),
    "Traceloop, a tool": (
        "add.tool", {"traceloop.span.kind": "tool", "traceloop.entity.name": "add"}, {"operation": "execute_tool", "tool_name": "add"},
    ),
    "Traceloop, an agent": (
        "x.agent", {"traceloop.span.kind": "agent", "traceloop.entity.name": "x"}, {"operation": "invoke_agent", "agent_name": "x"},
    ),
    "Traceloop, a workflow": ("w", {"traceloop.span.kind": "workflow", "traceloop.entity.name": "w"}, {"operation": "invoke_workflow"}),
    "OpenAI Agents SDK, a generation": (
        "generation",
        {"span_data": {"type": "generation", "model": "gpt-4.1", "usage": {"input_tokens": 9, "output_tokens": 3,
                                                                           "input_tokens_details": {"cached_tokens": 4}}}},
        {"operation": "chat", "model": "gpt-4.1", "input_tokens": 9, "output_tokens": 3, "cached_tokens": 4},
    ),
    "OpenAI Agents SDK, a function, flattened": (
        "function", {"span_data.type": "function", "span_data.name": "add"}, {"operation": "execute_tool", "tool_name": "add"},
    ),
    "OpenAI Agents SDK, an agent": (
        "agent", {"span_data": {"type": "agent", "name": "Helper", "tools": []}}, {"operation": "invoke_agent", "agent_name": "Helper"},
    ),
    "OpenAI Agents SDK, a handoff": ("handoff", {"span_data": {"type": "handoff", "from_agent": "a"}}, {"operation": "handoff"}),
    "none of them": ("GET /", {"http.method": "GET", "type": "agent"}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_convention_is_understood(case: str) -> None:
    name, attributes, expected = CASES[case]
    before = repr(attributes)
    found = normalize(name, attributes)
    assert found == {column: None for column in COLUMNS} | {"normalizer": NORMALIZER} | expected
    assert repr(attributes) == before, "the attributes stay untouched"


def test_a_secret_among_the_attributes_reaches_no_column() -> None:
    secret = "sk-" + "a1b2c3d4e5f6g7h8i9j0k1"
    found = normalize(f"execute_tool {secret}", {"gen_ai.operation.name": "execute_tool", "error.type": f"{'x' * 240} {secret}"})
    assert found["tool_name"] == "[redacted]" and "sk-" not in str(found["error_type"])


def test_the_current_name_counts_where_an_old_one_stands_beside_it() -> None:
    both = {"gen_ai.usage.input_tokens": 1, "gen_ai.usage.prompt_tokens": 2, "gen_ai.provider.name": "new", "gen_ai.system": "old"}
    found = normalize("x", both | {"openinference.span.kind": "TOOL", "gen_ai.operation.name": "chat"})
    assert (found["input_tokens"], found["provider"], found["operation"]) == (1, "new", "chat")


@pytest.mark.parametrize("value", [True, -1, 1.5, float("nan"), float("inf"), 2**63, "many", "", "²", [1], {"a": 1}, None, "9" * 30])
def test_a_count_that_is_none_is_left_out(value: Any) -> None:
    assert normalize("x", {"gen_ai.usage.input_tokens": value})["input_tokens"] is None


NAMES = [
    "gen_ai.operation.name",
    "openinference.span.kind",
    "span_data",
    "gen_ai.usage.input_tokens",
    "gen_ai.response.finish_reasons",
    "session.id",
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@settings(max_examples=200, deadline=None)
@given(st.text(), st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), anything, max_size=6))
def test_whatever_the_attributes_hold_the_columns_fit(name: str, attributes: dict[str, Any]) -> None:
    found = normalize(name, attributes)
    assert set(found) == COLUMNS
    for column, value in found.items():
        if column.endswith("_tokens"):
            assert value is None or (type(value) is int and 0 <= value < 2**63)
        elif column != "normalizer":
            assert value is None or (isinstance(value, str) and 0 < len(value) <= 256)
