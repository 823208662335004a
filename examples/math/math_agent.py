"""An agent that answers arithmetic with a calculator: the OpenAI Agents SDK, one MCP server, and a reward.

python examples/math/math_agent.py --base-url http://127.0.0.1:8000/v1 --model NAME     a dry run over 4 tasks
leyden runners examples/math/math_agent.py:math_agent -n 4                               runners for a store
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any
from weakref import WeakKeyDictionary

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError, ModelRefusalError
from calculator import calculator
from openai import AsyncOpenAI
from reward import compute_reward
from tasks import EXAMPLES, Task, make_tasks

import leyden

INSTRUCTIONS = "Use the calculate tool for every question. Then answer with the number only, like ### 5 ###."
MAX_TURNS = 4  # a call, a second one, an answer, and one to spare


def worked_examples() -> list[Any]:
    """Three solved questions as chat turns: question, tool call, its result (in the form MCP gives it), the marked answer."""
    turns: list[Any] = []
    for number, (question, expression, value) in enumerate(EXAMPLES):
        call_id, arguments = f"example_{number}", json.dumps({"expression": expression})
        turns += [
            {"role": "user", "content": question},
            {"type": "function_call", "call_id": call_id, "name": "calculate", "arguments": arguments},
            {"type": "function_call_output", "call_id": call_id, "output": [{"type": "input_text", "text": str(value)}]},
            {"role": "assistant", "content": f"### {value} ###"},
        ]
    return turns


@leyden.rollout
async def math_agent(task: Task, llm: leyden.LLM) -> float:
    """Reward 1.0 for the right number after ``###``. What the model gets wrong is a 0.0; what the machinery gets wrong is raised."""
    sampling = llm.sampling_parameters
    agent = Agent(
        name="math",
        instructions=INSTRUCTIONS,
        mcp_servers=[calculator()],
        model=OpenAIChatCompletionsModel(model=llm.model, openai_client=_client(llm)),
        model_settings=ModelSettings(
            temperature=sampling.get("temperature"), top_p=sampling.get("top_p"), max_tokens=sampling.get("max_tokens", 512)
        ),
    )
    conversation = [*worked_examples(), {"role": "user", "content": task["input"]}]
    try:
        result = await Runner.run(agent, conversation, max_turns=MAX_TURNS, run_config=RunConfig(tracing_disabled=True))
    except (MaxTurnsExceeded, ModelBehaviorError, ModelRefusalError):
        return 0.0  # it never came to an end, or called a tool that does not exist
    return compute_reward(str(result.final_output), task["target"])


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()


def _client(llm: leyden.LLM) -> AsyncOpenAI:
    """All rollouts of this process share one connection pool (a new one costs 30 ms); key and URL are each rollout's own."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none")
    return _clients[loop].with_options(base_url=llm.endpoint, api_key=llm.api_key or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the agent on four tasks, without a store.")
    parser.add_argument("--base-url", required=True, help="an OpenAI-compatible endpoint, ending in /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--api-key")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--mix", default="three-ops")
    args = parser.parse_args()
    llm = leyden.LLM(endpoint=args.base_url, model=args.model, api_key=args.api_key, sampling_parameters={"temperature": args.temperature})
    tasks = make_tasks(args.mix, 4, seed=0, split="test")
    for task, result in zip(tasks, leyden.dev(math_agent, tasks, llm=llm), strict=True):
        outcome = result.error or " ".join(f"{reward.name}={reward.value:g}" for reward in result.rewards)
        print(f"{task['input']:<40} {outcome}")


if __name__ == "__main__":
    main()
