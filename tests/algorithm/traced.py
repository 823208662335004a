"""Spans as four families of instrumentation write them, attribute by attribute, for one and the same call."""

from __future__ import annotations

import json

from leyden.server.normalizer import normalize
from leyden.types import Span

ASKED = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": "1+1?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c0", "content": "2"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ANSWER = {"role": "assistant", "content": "let me see", "tool_calls": [CALL]}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
LOGPROBS = {"content": [{"token": "a", "bytes": None, "logprob": -0.1, "top_logprobs": []}] * 3}
COMPLETION = {
    "id": "chatcmpl-1",
    "choices": [{"finish_reason": "tool_calls", "index": 0, "logprobs": LOGPROBS, "message": ANSWER, "token_ids": [4, 5, 2]}],
    "usage": {"completion_tokens": 3, "prompt_tokens": 3, "total_tokens": 6},
    "prompt_token_ids": [1, 2, 3],
}

OPENINFERENCE = {  # openinference-instrumentation-openai 0.1.66
    "openinference.span.kind": "LLM",
    "llm.model_name": "m",
    "llm.finish_reason": "tool_calls",
    "llm.token_count.prompt": 3,
    "llm.token_count.completion": 3,
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "be good",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "1+1?",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c0",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "add",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": "{}",
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.tool_call_id": "c0",
    "llm.input_messages.3.message.content": "2",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "let me see",
    "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "add",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"a": 1}',
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    "output.mime_type": "application/json",
    "output.value": json.dumps(COMPLETION),
}
GEN_AI = {  # opentelemetry-instrumentation-openai 0.62.4 (OpenLLMetry, Traceloop), the gen_ai conventions
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "m",
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.response.finish_reasons": ["tool_call"],
    "gen_ai.usage.input_tokens": 3,
    "gen_ai.usage.output_tokens": 3,
    "gen_ai.input.messages": json.dumps(
        [
            {"role": "system", "parts": [{"content": "be good", "type": "text"}]},
            {"role": "user", "parts": [{"type": "text", "content": "1+1?"}]},
            {"role": "assistant", "parts": [{"type": "tool_call", "name": "add", "id": "c0", "arguments": {}}]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c0", "response": "2"}]},
        ]
    ),
    "gen_ai.output.messages": json.dumps(
        [
            {
                "role": "assistant",
                "parts": [
                    {"content": "let me see", "type": "text"},
                    {"type": "tool_call", "name": "add", "id": "c1", "arguments": {"a": 1}},
                ],
                "finish_reason": "tool_call",
            }
        ]
    ),
    "gen_ai.tool.definitions": json.dumps([{"type": "function", **TOOL["function"]}]),
}
_FLAT = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "be good",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": json.dumps([{"type": "text", "text": "1+1?"}]),
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "c0",
    "gen_ai.prompt.2.tool_calls.0.name": "add",
    "gen_ai.prompt.2.tool_calls.0.arguments": "{}",
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.tool_call_id": "c0",
    "gen_ai.prompt.3.content": "2",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "let me see",
    "gen_ai.completion.0.finish_reason": "tool_calls",
    "gen_ai.completion.0.tool_calls.0.id": "c1",
    "gen_ai.completion.0.tool_calls.0.name": "add",
    "gen_ai.completion.0.tool_calls.0.arguments": '{"a": 1}',
    "gen_ai.response.id": "chatcmpl-1",
}
TRACELOOP = {  # before it wrote messages of parts
    **_FLAT,
    "llm.request.type": "chat",
    "gen_ai.usage.prompt_tokens": 3,
    "gen_ai.usage.completion_tokens": 3,
    "llm.request.functions.0.name": "add",
    "llm.request.functions.0.description": "adds",
    "llm.request.functions.0.parameters": json.dumps(TOOL["function"]["parameters"]),
}
AGENTOPS = {  # with what Agent-lightning's instrumentation adds
    **_FLAT,
    "agentops.span.kind": "llm",
    "gen_ai.usage.completion_tokens": 3,
    "gen_ai.request.tools.0.type": "function",
    "gen_ai.request.tools.0.name": "add",
    "gen_ai.request.tools.0.description": "adds",
    "gen_ai.request.tools.0.parameters": json.dumps(TOOL["function"]["parameters"]),
    "prompt_token_ids": [1, 2, 3],
    "response_token_ids": [4, 5, 2],
    "logprobs.content": json.dumps(LOGPROBS["content"]),
}
LITELLM = {  # raw_gen_ai_request of its proxy: Python's literals, as text
    "llm.hosted_vllm.id": "chatcmpl-1",
    "llm.hosted_vllm.prompt_token_ids": "[1, 2, 3]",
    "llm.hosted_vllm.choices": str(COMPLETION["choices"]),
}
RESPONSES = {  # the OpenAI Agents SDK over the Responses API, as our runners record it
    "gen_ai.operation.name": "chat",
    "gen_ai.response.id": "resp-1",
    "gen_ai.system_instructions": "be good",
    "gen_ai.input.messages": [
        {"role": "user", "content": "1+1?"},
        {"type": "function_call", "call_id": "c0", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c0", "output": "2"},
    ],
    "gen_ai.output.messages": [
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
    ],
    "gen_ai.tool.definitions": [{"type": "function", **TOOL["function"]}],
}


def span(number, attributes, name="call", parent=None, start=None, end=None, status="ok", **more):
    """The store's span: its columns are filled as the store fills them."""
    start = number * 100 if start is None else start
    return Span(
        trace_id="a" * 32, span_id=f"{number:016x}", parent_id=None if parent is None else f"{parent:016x}", rollout_id="r", attempt=1,
        name=name, start_ns=start, end_ns=start + 50 if end is None else end, status=status, attributes=attributes,
        **normalize(name, attributes) | more,
    )  # fmt: skip


def agent(number, name, start, end, parent=None):
    return span(number, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}, f"agent {name}", parent, start, end)


def reward(number, value, name="reward", start=None):
    attributes = {"agentlightning.reward.0.name": name, "agentlightning.reward.0.value": value}
    return span(number, attributes, "agentlightning.annotation", start=start)


def ids(number, prompt=(1,), response=(7, 2), **more):
    """A call with ids of its own, and no text."""
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.response.finish_reasons": ["stop"]}
    return span(number, attributes | {"leyden.prompt_token_ids": list(prompt), "leyden.response_token_ids": list(response)}, **more)
