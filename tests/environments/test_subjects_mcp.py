"""A real MCP server, which only a factory may bring."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent
from agents.mcp import MCPServerStdio
from model_stub import ModelStub, call, in_turn, say
from one_attempt import context

from leyden.environments import Environment, RewardScorer, Task, ToolOutcome
from leyden.types import LLM


def test_48_a_factorys_server_lives_for_one_attempt_and_its_failures_are_told(tmp_path: Any) -> None:
    servers: list[MCPServerStdio] = []

    def make() -> Agent[Any]:
        server = MCPServerStdio(
            name="calculator",
            params={"command": sys.executable, "args": ["-m", "mcp_server_calculator"]},
            client_session_timeout_seconds=60,
        )
        servers.append(server)
        return Agent(name="a", mcp_servers=[server])

    answer = in_turn(
        call("calculate", {"expression": "2 + 2"}),
        call("calculate", {"wrong": "1"}, "call_2"),
        call("calculate", {"expression": "1/0"}, "call_3"),
        say("4"),
    )
    with ModelStub(answer) as stub:
        env = Environment("sums", [Task("2 + 2")], RewardScorer(), make)
        own = context(LLM(endpoint=stub.url, model="m"))

        async def main() -> None:
            await env.subject.check()
            await env.subject.attempt(env.resolved[0], own)

        asyncio.run(main())
    assert own.output is not None
    assert [each.outcome for each in own.output.tools] == [ToolOutcome.OK, ToolOutcome.ERROR, ToolOutcome.ERROR]
    assert own.output.tool_schemas[0]["function"]["name"] == "calculate"
    assert len(servers) == 3 and all(server.session is None for server in servers)  # two looks before the first attempt
    assert env.env_fingerprint().components["tools"] and len(servers) == 3
