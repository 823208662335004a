"""Agents that talk to an LLM through OpenAI's SDK as it comes: two retries of its own, before anybody hears of a failure."""

from __future__ import annotations

from openai import AsyncOpenAI

from leyden.runners import rollout
from leyden.types import LLM


@rollout
async def talk(task: str, llm: LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(3):
            answer = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(answer.choices[0].message.content == "abc")


@rollout
async def listen(task: str, llm: LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(2):
            stream = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}], stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    return float(text == "abc")
