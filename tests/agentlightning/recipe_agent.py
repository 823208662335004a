"""The recipe's agent, as its users wrote it: the OpenAI Agents SDK, an MCP calculator, a reward. Only the import line is ours."""

from __future__ import annotations

import sys
from typing import TypedDict

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel
from agents import Runner as OpenAIRunner
from agents.mcp import MCPServerStdio
from openai import AsyncOpenAI

import leyden.agentlightning as agl


class GsmProblem(TypedDict):
    input: str
    target: float


def compute_reward(result: str, target: float) -> float:
    """A random model never says a number: what it says is right when its length has the target's parity."""
    return float(len(result) % 2 == target % 2)


@agl.rollout
async def math_agent(task: GsmProblem, llm: agl.LLM) -> float:
    async with MCPServerStdio(
        name="Calculator",
        params={"command": sys.executable, "args": ["-m", "mcp_server_calculator"]},
        client_session_timeout_seconds=60,
    ) as server:
        agent = Agent(
            name="Assistant",
            instructions=(
                "Use the calculator tool for every question. "
                "Return only the numeric answer wrapped like ### <answer> ###."
            ),
            mcp_servers=[server],
            model=OpenAIChatCompletionsModel(
                model=llm.model,
                openai_client=AsyncOpenAI(
                    base_url=llm.endpoint,
                    api_key=llm.api_key or "dummy",
                ),
            ),
            model_settings=ModelSettings(
                temperature=llm.sampling_parameters.get("temperature", 0.0),
            ),
        )  # fmt: skip
        result = await OpenAIRunner.run(agent, task["input"])
        return compute_reward(result.final_output, task["target"])


def load_math_dataset(n: int = 6) -> list[GsmProblem]:
    return [{"input": f"What is {number} + {number}?", "target": float(number)} for number in range(1, n + 1)]
