"""What is done with each part of an agent of the OpenAI Agents SDK, so that no attempt reaches the caller's objects or another attempt's.

An allow-list: a field that stands nowhere here (a new one of the SDK, one that somebody set) is refused. A test compares the tables with
the SDK that is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Action(StrEnum):
    SHARE = "share"  # cannot be written to: texts, numbers, types
    COPY = "copy"  # deeply; functions stay the same ones
    REBUILD = "rebuild"  # by code of its own in ``isolation``
    LIVE = "live"  # holds what cannot be copied (a connection, a machine, a run of its own): only a factory can make a new one


SHARE, COPY, REBUILD, LIVE = Action

AGENT = {
    "name": SHARE, "handoff_description": SHARE, "tools": REBUILD, "mcp_servers": LIVE, "mcp_config": COPY, "instructions": COPY,
    "prompt": COPY, "handoffs": REBUILD, "model": REBUILD, "model_settings": REBUILD, "input_guardrails": REBUILD,
    "output_guardrails": REBUILD, "output_type": COPY, "hooks": COPY, "tool_use_behavior": COPY, "reset_tool_choice": SHARE,
}  # fmt: skip

HANDOFF = {
    "tool_name": SHARE, "tool_description": SHARE, "input_json_schema": COPY, "on_invoke_handoff": REBUILD, "agent_name": SHARE,
    "input_filter": COPY, "nest_handoff_history": SHARE, "strict_json_schema": SHARE, "is_enabled": COPY, "_agent_ref": REBUILD,
    "_default_tool_identity": SHARE,
}  # fmt: skip

FUNCTION_TOOL = {
    "name": SHARE, "description": SHARE, "params_json_schema": COPY, "on_invoke_tool": REBUILD, "strict_json_schema": SHARE,
    "is_enabled": COPY, "tool_input_guardrails": COPY, "tool_output_guardrails": COPY, "needs_approval": COPY, "timeout_seconds": SHARE,
    "timeout_behavior": SHARE, "timeout_error_function": COPY, "defer_loading": SHARE, "custom_data_extractor": COPY,
    "allowed_callers": COPY, "output_json_schema": COPY, "_output_type_adapter": SHARE, "_failure_error_function": COPY,
    "_use_default_failure_error_function": SHARE, "_is_agent_tool": SHARE, "_agent_tool_default_identity": SHARE,
    "_is_codex_tool": LIVE, "_agent_instance": REBUILD, "_tool_namespace": SHARE, "_tool_namespace_description": SHARE, "_mcp_title": SHARE,
    "_tool_origin": COPY, "_emit_tool_origin": SHARE, "_mcp_tool_binding": SHARE, "_mcp_annotations": COPY,
}  # fmt: skip

INPUT_GUARDRAIL = {"guardrail_function": COPY, "name": SHARE, "run_in_parallel": SHARE}
OUTPUT_GUARDRAIL = {"guardrail_function": COPY, "name": SHARE}

MODEL_SETTINGS = {
    "temperature": SHARE, "top_p": SHARE, "frequency_penalty": SHARE, "presence_penalty": SHARE, "tool_choice": COPY,
    "parallel_tool_calls": SHARE, "truncation": SHARE, "max_tokens": SHARE, "reasoning": COPY, "verbosity": SHARE, "metadata": COPY,
    "store": SHARE, "prompt_cache_retention": SHARE, "include_usage": SHARE, "response_include": COPY, "top_logprobs": SHARE,
    "extra_query": COPY, "extra_body": COPY, "extra_headers": COPY, "extra_args": COPY, "retry": COPY, "context_management": COPY,
    "prompt_cache_options": COPY, "preserve_raw_usage": SHARE, "timeout": SHARE,
}  # fmt: skip

# By "module.class", exactly: a subclass is known by the fields it has, all of which have to stand in the table of its base.
FIELDS: Mapping[str, Mapping[str, Action]] = {
    "agents.agent.Agent": AGENT,
    "agents.handoffs.Handoff": HANDOFF,
    "agents.tool.FunctionTool": FUNCTION_TOOL,
    "agents.guardrail.InputGuardrail": INPUT_GUARDRAIL,
    "agents.guardrail.OutputGuardrail": OUTPUT_GUARDRAIL,
    "agents.model_settings.ModelSettings": MODEL_SETTINGS,
}

# Tools that are not functions. What the provider runs is only a description here, and is copied whole.
TOOLS: Mapping[str, Action] = {
    "agents.tool.FunctionTool": REBUILD,
    "agents.tool.FileSearchTool": COPY,
    "agents.tool.WebSearchTool": COPY,
    "agents.tool.HostedMCPTool": COPY,
    "agents.tool.ImageGenerationTool": COPY,
    "agents.tool.CodeInterpreterTool": COPY,
    "agents.tool.ToolSearchTool": COPY,
    "agents.tool.ProgrammaticToolCallingTool": COPY,
    "agents.tool.CustomTool": LIVE,
    "agents.tool.ComputerTool": LIVE,
    "agents.tool.ShellTool": LIVE,
    "agents.tool.ApplyPatchTool": LIVE,
    "agents.tool.LocalShellTool": LIVE,
}

# Models that hold settings and a client, and nothing that changes from call to call: the client's connections are shared.
STATELESS_MODELS = {
    "agents.models.openai_chatcompletions.OpenAIChatCompletionsModel",
    "agents.models.openai_responses.OpenAIResponsesModel",
}
# Shared wherever they are found: connections, and no memory.
CLIENTS = {"openai.AsyncOpenAI", "openai._client.AsyncOpenAI", "httpx.AsyncClient", "httpx2.AsyncClient"}
