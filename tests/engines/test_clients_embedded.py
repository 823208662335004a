"""Every client and framework against the real embedded engine: the ids recorded are the ids the engine returned, streamed and not, with
tools and without."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from clients import CASES, run
from desk import desk
from tinymodel import make_tiny_model

from leyden.ports import reserve_port
from leyden.runners.dry_run import adev
from leyden.types import LLM


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tiny model behind the engine's own server, in a thread of its own."""
    from leyden.models.embedded.engine import TransformersEngine
    from leyden.models.embedded.server import create_app

    engine = TransformersEngine(make_tiny_model(tmp_path_factory.mktemp("clients") / "tiny"), device="cpu")
    listener = reserve_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(engine, "tiny"), log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()
    engine.close()


@pytest.mark.parametrize("name", CASES)
def test_the_ids_recorded_are_those_the_engine_returned(engine: str, name: str) -> None:
    run(engine, "tiny", name)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "agents").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_agent_runs_and_every_token_of_it_is_kept(engine: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)

    async def main() -> None:
        async with desk(engine, "tiny") as at:
            llm = LLM(endpoint=at.proxy.base_url, api_key=at.lease.key, model=at.model, sampling_parameters={"max_tokens": 64})
            [result] = await adev(getattr(module, path.stem), module.TASKS[:1], llm=llm)
            assert result.error is None and result.reward in (0.0, 1.0)
            rows = await at.check()
            assert rows and rows[0].request["tools"][0]["function"]["name"] == "calculate"
            called = [call["function"]["name"] for call in (rows[0].response or {}).get("tool_calls", ())]
            assert len(rows) > 1 or "calculate" not in called, "a call is answered, and the model asked again"

    asyncio.run(main())
