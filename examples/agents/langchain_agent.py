"""An agent of LangChain: a chat model with a bound tool.

python examples/agents/langchain_agent.py      needs: pip install 'leyden[train]' langchain-openai
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import Field

import leyden
from leyden.environments import Environment, RewardScorer, Task, run_rollouts

TASKS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a, b in ((12, 34), (25, 31), (47, 11))]
Number = Annotated[int, Field(ge=0, le=99)]


@tool
def calculate(a: Number, op: Literal["+", "-"], b: Number) -> int:
    """a plus or minus b."""
    return a + b if op == "+" else a - b


@leyden.rollout
async def langchain_agent(task: dict[str, Any], llm: leyden.LLM) -> float:
    """Reward 1.0 if the answer names the number."""
    sampling: Any = llm.sampling_parameters
    model = ChatOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none", model=llm.model, **sampling)
    messages: list[BaseMessage] = [HumanMessage(task["question"])]
    called = await model.bind_tools([calculate], tool_choice="required", parallel_tool_calls=False).ainvoke(messages)
    if not called.tool_calls:  # its call was cut off by the limit
        return 0.0
    messages += [called, *[await calculate.ainvoke(call) for call in called.tool_calls]]
    text = "".join([str(piece.content) async for piece in model.bind_tools([calculate]).astream(messages)])
    return float(str(task["answer"]) in re.findall(r"\d+", text))


env = Environment(name="langchain", agent=langchain_agent, tasks=[Task(task) for task in TASKS], scorer=RewardScorer())


def main() -> None:
    with leyden.serve_model("smollm2", {"temperature": 1.0, "max_tokens": 64}) as llm:
        print(run_rollouts(env, k=4, model=llm))


if __name__ == "__main__":
    main()
