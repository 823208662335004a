"""An agent that holds its conversation itself, with the openai SDK: one call of a calculator, then the answer.

python examples/agents/openai_sdk.py          needs: pip install 'leyden[train]' openai
"""

from __future__ import annotations

import json
import re
from typing import Any

from openai import AsyncOpenAI

import leyden
from leyden.environments import Environment, RewardScorer, Task, run_rollouts

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
PARAMETERS = {
    "type": "object",
    "properties": {"a": NUMBER, "op": {"enum": ["+", "-"]}, "b": NUMBER},
    "required": ["a", "op", "b"],
    "additionalProperties": False,
}
CALCULATE: Any = {"type": "function", "function": {"name": "calculate", "description": "a plus or minus b.", "parameters": PARAMETERS}}
TASKS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a, b in ((12, 34), (25, 31), (47, 11))]


def calculate(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b


@leyden.rollout
async def openai_sdk(task: dict[str, Any], llm: leyden.LLM) -> float:
    """Reward 1.0 if the answer names the number."""
    sampling: Any = llm.sampling_parameters
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        first = await client.chat.completions.create(
            model=llm.model, messages=messages, tools=[CALCULATE], tool_choice="required", parallel_tool_calls=False, **sampling
        )
        message = first.choices[0].message
        if first.choices[0].finish_reason != "tool_calls":  # its call was cut off by the limit
            return 0.0
        messages.append(message)
        for call in message.tool_calls or ():
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        last = await client.chat.completions.create(model=llm.model, messages=messages, tools=[CALCULATE], **sampling)
    return float(str(task["answer"]) in re.findall(r"\d+", last.choices[0].message.content or ""))


env = Environment(name="openai_sdk", agent=openai_sdk, tasks=[Task(task) for task in TASKS], scorer=RewardScorer())


def main() -> None:
    with leyden.serve_model("smollm2", {"temperature": 1.0, "max_tokens": 64}) as llm:
        print(run_rollouts(env, k=4, model=llm))


if __name__ == "__main__":
    main()
