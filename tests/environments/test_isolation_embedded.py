"""Isolation where nothing is scripted: a real model on the embedded engine, over the wire, beside a plain run of the same agent."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from one_attempt import context
from openai import AsyncOpenAI

from leyden.environments import Task
from leyden.environments.subjects import as_subject

sys.path.insert(0, str(Path(__file__).parents[1]))

from tinymodel import make_tiny_model


class Served:
    """The engine's app in a thread; ``bodies`` is what it was sent."""

    def __init__(self, directory: Path) -> None:
        from leyden.models.embedded.engine import TransformersEngine
        from leyden.models.embedded.server import create_app
        from leyden.ports import reserve_port

        self.bodies: list[bytes] = []
        self._engine = TransformersEngine(directory, device="cpu")
        app = create_app(self._engine, "tiny")

        async def recording(scope: Any, receive: Any, send: Any) -> None:
            async def received() -> Any:
                message = await receive()
                self.bodies += [message["body"]] if message.get("body") else []
                return message

            await app(scope, received, send)

        listener = reserve_port("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        self._server = uvicorn.Server(uvicorn.Config(recording, log_config=None, lifespan="off"))
        self._thread = threading.Thread(target=self._server.run, args=([listener],), daemon=True)
        self._thread.start()
        assert httpx.get(f"{self.url}/models", trust_env=False, timeout=60).status_code == 200

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._engine.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(make_tiny_model(tmp_path_factory.mktemp("tiny")))
    yield server
    server.close()


async def spoil(context: Any, agent: Agent[Any]) -> str:
    """Instructions that leave a note for the next one, in every place they know."""
    text = f"Be brief. {len(agent.tools)} tools, {agent.model_settings.extra_body}, {agent.tools[0].params_json_schema['title']}"
    agent.model_settings.extra_body["user"] += "!"  # type: ignore[index, operator]
    agent.tools[0].params_json_schema["title"] += "!"  # type: ignore[union-attr]
    agent.tools.append(agent.tools[0])
    return text


def make(served: Served) -> Agent[Any]:
    @function_tool
    def calculate(expression: str) -> str:
        """Evaluates an expression."""
        return "4"

    model = OpenAIChatCompletionsModel("tiny", AsyncOpenAI(base_url=served.url, api_key="none"))
    settings = ModelSettings(temperature=0.0, max_tokens=6, extra_body={"user": "somebody"})
    return Agent(name="a", instructions=spoil, tools=[calculate], model=model, model_settings=settings)


def test_32_33_attempts_on_a_real_engine_ask_and_answer_what_a_plain_run_does_and_change_nothing(served: Served) -> None:
    plain = asyncio.run(Runner.run(make(served), "12 + 34", run_config=RunConfig(tracing_disabled=True)))
    agent = make(served)
    subject, owns = as_subject(agent), [context() for _ in range(5)]

    async def main() -> None:
        await subject.check()
        await asyncio.gather(*(subject.attempt(Task("12 + 34", id="t"), own) for own in owns))

    asyncio.run(main())
    asked = [body for body in served.bodies if b"12 + 34" in body]
    assert len(asked) == 6 and len(set(asked)) == 1 and asked[0].count(b"!") == 2  # its own two notes
    assert len(agent.tools) == 1 and agent.model_settings.extra_body == {"user": "somebody"}
    for own in owns:
        assert own.output is not None and own.output.messages[-1]["content"] == plain.raw_responses[-1].output[0].content[0].text  # type: ignore[union-attr]
        assert own.output.finish_reason == "length" and own.output.output_tokens == 6
