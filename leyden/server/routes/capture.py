from __future__ import annotations

from fastapi import APIRouter

from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Generation, Record, Rejection, Reward, Span

router = APIRouter()


class _Attempt(Record):
    attempt: int | None = None


@route(router, "POST", "/v1/spans")
async def add_spans(call: Call) -> int:
    body = await call.read(messages.AddSpans)
    return await call.store.add_spans(body.ref, body.spans)


@route(router, "GET", "/v1/rollouts/{rollout_id}/spans")
async def list_spans(call: Call) -> list[Span]:
    return await call.store.list_spans(call.path["rollout_id"], call.query(_Attempt).attempt)


@route(router, "POST", "/v1/generations")
async def add_generations(call: Call) -> None:
    body = await call.read(messages.AddGenerations)
    await call.store.add_generations(body.ref, body.generations)


@route(router, "POST", "/v1/generations/query")
async def list_generations(call: Call) -> list[Generation]:
    body = await call.read(messages.OfRollouts)
    return await call.store.list_generations(body.rollout_ids, body.attempt)


@route(router, "POST", "/v1/rewards")
async def add_rewards(call: Call) -> None:
    body = await call.read(messages.AddRewards)
    await call.store.add_rewards(body.ref, body.rewards)


@route(router, "POST", "/v1/rewards/query")
async def list_rewards(call: Call) -> list[Reward]:
    body = await call.read(messages.OfRollouts)
    return await call.store.list_rewards(body.rollout_ids, body.attempt)


@route(router, "GET", "/v1/rejections")
async def list_rejections(call: Call) -> list[Rejection]:
    return await call.store.list_rejections()
