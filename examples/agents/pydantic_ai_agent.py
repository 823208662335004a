"""An agent of PydanticAI whose answer is an object. It ends by a call too: of a tool that takes the answer.

python examples/agents/pydantic_ai_agent.py   needs: pip install 'leyden[train]' 'pydantic-ai-slim[openai]'
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import leyden
from leyden.environments import Environment, RewardScorer, Task, run_rollouts

TASKS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a, b in ((12, 34), (25, 31), (47, 11))]
Number = Annotated[int, Field(ge=0, le=99)]


class Answer(BaseModel):
    """The answer to the question."""

    value: Number


def calculate(a: Number, op: Literal["+", "-"], b: Number) -> int:
    """a plus or minus b."""
    return a + b if op == "+" else a - b


@leyden.rollout
async def pydantic_ai_agent(task: dict[str, Any], llm: leyden.LLM) -> float:
    """Reward 1.0 for the number."""
    settings: Any = {**llm.sampling_parameters, "parallel_tool_calls": False}
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        model = OpenAIChatModel(llm.model, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, output_type=Answer, tools=[calculate], model_settings=settings)
        try:
            result = await agent.run(task["question"], usage_limits=UsageLimits(request_limit=4))
        except (UsageLimitExceeded, UnexpectedModelBehavior):  # it never came to an answer, or that was cut off by the limit
            return 0.0
    return float(result.output.value == task["answer"])


env = Environment(name="pydantic_ai", agent=pydantic_ai_agent, tasks=[Task(task) for task in TASKS], scorer=RewardScorer())


def main() -> None:
    with leyden.serve_model("smollm2", {"temperature": 1.0, "max_tokens": 64}) as llm:
        print(run_rollouts(env, k=4, model=llm))


if __name__ == "__main__":
    main()
