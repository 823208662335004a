"""What an engine is asked besides calls."""

from __future__ import annotations

import asyncio

import pytest
from asgi import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from leyden.proxy import engine_facts
from leyden.proxy.deployments import Deployment
from leyden.proxy.engine_facts import EngineFacts
from leyden.proxy.passthrough import PassThrough


@pytest.mark.parametrize(("again", "asked"), [(0.0, 2), (3600.0, 1)])
def test_an_engine_that_did_not_answer_is_asked_again_but_not_at_every_call(
    monkeypatch: pytest.MonkeyPatch, again: float, asked: int
) -> None:
    monkeypatch.setattr(engine_facts, "AGAIN", again)
    answers = [JSONResponse({"error": "starting"}, 503), JSONResponse({"data": [{"id": "m", "vocab_size": 50}]})]
    left = list(answers)

    async def models(_: Request) -> Response:
        return left.pop(0)

    async def main() -> None:
        async with serving(Starlette(routes=[Route("/v1/models", models)])) as url:
            passthrough = PassThrough()
            facts = EngineFacts(passthrough)
            entry = {"model_name": "p", "litellm_params": {"model": "hosted_vllm/m", "api_base": f"{url}/v1"}}
            deployment = Deployment.from_entry(entry)
            facts.ask(deployment)
            assert await facts.vocabulary(deployment) is None
            await asyncio.sleep(0)
            facts.ask(deployment)
            assert await facts.vocabulary(deployment) == (50 if asked == 2 else None)
            assert len(answers) - len(left) == asked
            facts.close()
            await passthrough.close()

    asyncio.run(main())
