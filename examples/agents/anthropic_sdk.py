"""An agent written for Claude, with the anthropic SDK, and any model behind it.

python examples/agents/anthropic_sdk.py       needs: pip install 'leyden[train]' anthropic
"""

from __future__ import annotations

import re
from typing import Any

from anthropic import AsyncAnthropic

import leyden
from leyden.environments import Environment, RewardScorer, Task, run_rollouts

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {
    "type": "object",
    "properties": {"a": NUMBER, "op": {"enum": ["+", "-"]}, "b": NUMBER},
    "required": ["a", "op", "b"],
    "additionalProperties": False,
}
CALCULATE: Any = {"name": "calculate", "description": "a plus or minus b.", "input_schema": SCHEMA}
TASKS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a, b in ((12, 34), (25, 31), (47, 11))]


def calculate(a: int, op: str, b: int) -> int:
    return a + b if op == "+" else a - b


@leyden.rollout
async def anthropic_sdk(task: dict[str, Any], llm: leyden.LLM) -> float:
    """Reward 1.0 if the answer names the number."""
    # This SDK adds /v1 itself, sends the key as x-api-key, and must name a limit.
    root, key = llm.endpoint.removesuffix("/v1"), llm.api_key or "none"
    limits: Any = {"model": llm.model, "max_tokens": llm.sampling_parameters.get("max_tokens", 64)}
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    async with AsyncAnthropic(base_url=root, api_key=key) as client:
        first = await client.messages.create(messages=messages, tools=[CALCULATE], tool_choice=choice, **limits)
        if first.stop_reason != "tool_use":  # its call was cut off by the limit
            return 0.0
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": str(calculate(**block.input))}
            for block in first.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
        async with client.messages.stream(messages=messages, tools=[CALCULATE], **limits) as stream:
            text = "".join([piece async for piece in stream.text_stream])
    return float(str(task["answer"]) in re.findall(r"\d+", text))


env = Environment(name="anthropic_sdk", agent=anthropic_sdk, tasks=[Task(task) for task in TASKS], scorer=RewardScorer())


def main() -> None:
    with leyden.serve_model("smollm2", {"temperature": 1.0, "max_tokens": 64}) as llm:
        print(run_rollouts(env, k=4, model=llm))


if __name__ == "__main__":
    main()
