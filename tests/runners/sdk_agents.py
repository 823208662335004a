"""Agents of the OpenAI Agents SDK, which they import when they are called and no sooner. The task says what to do.

The module refuses every connection but those to this machine's ports, and writes down where one was to go: ``DIR/connected-HOST-PORT``.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import leyden

_connect = socket.socket.connect
_resolve = socket.getaddrinfo
PLACE: list[Path] = []


def connect(self: socket.socket, address: Any) -> None:
    if self.family == socket.AF_INET and PLACE:
        (PLACE[0] / f"connected-{address[0]}-{address[1]}").touch()
    _connect(self, address)


def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
    if host not in ("127.0.0.1", b"127.0.0.1") and PLACE:
        (PLACE[0] / f"resolved-{host}").touch()
        raise OSError("there is no network")
    return _resolve(host, *args, **kwargs)


socket.socket.connect = connect  # type: ignore[method-assign, assignment]
socket.getaddrinfo = resolve  # type: ignore[assignment]


@leyden.rollout
async def agent(task: dict[str, Any], llm: leyden.LLM) -> float:
    PLACE[:] = [Path(task["dir"])]
    import agents
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=llm.endpoint, api_key="none")
    chat = agents.OpenAIChatCompletionsModel(model=llm.model, openai_client=client)
    model = agents.OpenAIResponsesModel(model=llm.model, openai_client=client) if "responses" in task["do"] else chat

    @agents.function_tool
    def look(query: str = task["name"]) -> str:  # in a thread of its own
        leyden.emit_annotation({"tool of": task["name"]})
        return f"result for {task['name']}"

    @agents.input_guardrail(name="polite")
    async def polite(*_: Any) -> agents.GuardrailFunctionOutput:
        return agents.GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    made: dict[str, Any] = {"name": task["name"], "model": model}
    match task["do"]:
        case "tool" | "streamed" | "responses" | "responses streamed":
            made["tools"] = [look]
        case "guardrail":
            made["input_guardrails"] = [polite]
        case "handoff":
            made["handoffs"] = [agents.Agent(name="specialist", model=model)]
        case "mcp":
            made["mcp_servers"] = [tool_server()]
        case "fail":
            made["model"] = agents.OpenAIChatCompletionsModel(
                model="m", openai_client=AsyncOpenAI(base_url="http://127.0.0.1:9", api_key="x")
            )
            client.max_retries = 0
        case "own processor":
            with agents.trace("my workflow", group_id="talk-7", metadata={"who": task["name"]}):
                agents.set_trace_processors([Own(PLACE[0])])
                with agents.custom_span("thinking", {"about": task["name"], "odd": object()}):
                    pass
    run = agents.Runner.run_streamed if "streamed" in task["do"] else agents.Runner.run
    question = f"{task['name']}?"
    if task["do"] == "fail":
        try:
            await agents.Runner.run(agents.Agent(**made), question)
        except Exception:
            return 0.0
    if "streamed" in task["do"]:
        result = run(agents.Agent(**made), question)
        async for _ in result.stream_events():
            pass
    else:
        await run(agents.Agent(**made), question)
    return 1.0


class Own:
    """A processor of the agent's."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def on_span_end(self, span: Any) -> None:
        (self._place / f"own-{span.span_data.type}").touch()

    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


def tool_server() -> Any:
    from agents.mcp import MCPServer
    from mcp.types import CallToolResult, TextContent, Tool

    class Server(MCPServer):
        name = "calculator"

        async def connect(self) -> None: ...
        async def cleanup(self) -> None: ...

        async def list_tools(self, *_: Any) -> list[Tool]:
            return [Tool(name="add", inputSchema={"type": "object", "properties": {}})]

        async def call_tool(self, *_: Any, **__: Any) -> CallToolResult:
            return CallToolResult(content=[TextContent(type="text", text="4")])

        async def list_prompts(self) -> Any: ...
        async def get_prompt(self, *_: Any, **__: Any) -> Any: ...

    return Server()
