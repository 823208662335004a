"""An agent of the OpenAI Agents SDK, over Responses or over chat completions.

python examples/agents/agents_sdk.py          needs: pip install 'leyden[train,runners]'
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from agents import Agent, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, function_tool
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError
from openai import AsyncOpenAI
from pydantic import Field

import leyden
from leyden.environments import Environment, RewardScorer, Task, run_rollouts

TASKS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a, b in ((12, 34), (25, 31), (47, 11))]
Number = Annotated[int, Field(ge=0, le=99)]


@function_tool
def calculate(a: Number, op: Literal["+", "-"], b: Number) -> int:
    """a plus or minus b."""
    return a + b if op == "+" else a - b


@leyden.rollout
async def agents_sdk(task: dict[str, Any], llm: leyden.LLM) -> float:
    """Reward 1.0 if the answer names the number."""
    sampling = llm.sampling_parameters
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        agent = Agent(
            name="math",
            tools=[calculate],
            # OpenAIChatCompletionsModel(llm.model, openai_client=client) does as well.
            model=OpenAIResponsesModel(llm.model, openai_client=client),
            # The first turn must call the tool; the SDK lets go of "required" after that.
            model_settings=ModelSettings(
                tool_choice="required",
                parallel_tool_calls=False,
                temperature=sampling.get("temperature"),
                max_tokens=sampling.get("max_tokens"),
            ),
        )
        try:
            result = await Runner.run(agent, task["question"], max_turns=4, run_config=RunConfig(tracing_disabled=True))
        except (MaxTurnsExceeded, ModelBehaviorError):  # it came to no end, or its answer was cut off by the limit
            return 0.0
    return float(str(task["answer"]) in re.findall(r"\d+", str(result.final_output)))


env = Environment(name="agents_sdk", agent=agents_sdk, tasks=[Task(task) for task in TASKS], scorer=RewardScorer())


def main() -> None:
    with leyden.serve_model("smollm2", {"temperature": 1.0, "max_tokens": 64}) as llm:
        print(run_rollouts(env, k=4, model=llm))


if __name__ == "__main__":
    main()
