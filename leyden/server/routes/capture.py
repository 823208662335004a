from __future__ import annotations

from starlette.routing import Router

from leyden.audit import AuditCounts, CallAudit
from leyden.server import messages
from leyden.server.wire import Call, route
from leyden.types import Generation, Mode, Record, Rejection, Reward, Span

router = Router()


class _Counted(Record):
    run_id: str | None = None
    iteration: int | None = None
    mode: Mode | None = None


class _Attempt(Record):
    attempt: int | None = None


@route(router, "POST", "/v1/spans")
async def add_spans(call: Call, body: messages.AddSpans) -> int:
    return await call.store.add_spans(body.ref, body.spans)


@route(router, "GET", "/v1/rollouts/{rollout_id}/spans")
async def list_spans(call: Call, query: _Attempt) -> list[Span]:
    return await call.store.list_spans(call.path["rollout_id"], query.attempt)


@route(router, "POST", "/v1/generations")
async def add_generations(call: Call, body: messages.AddCalls) -> list[messages.Refusal | None]:
    """Each call as if alone. Answers for each null, or why it was refused."""
    return [None if error is None else messages.Refusal.of(error) for error in await call.store.add_calls(body.calls)]


@route(router, "POST", "/v1/generations/query")
async def list_generations(call: Call, body: messages.OfRollouts) -> list[Generation]:
    return await call.store.list_generations(body.rollout_ids, body.attempt)


@route(router, "POST", "/v1/audits/query")
async def list_audits(call: Call, body: messages.OfRollouts) -> list[CallAudit]:
    return await call.store.list_audits(body.rollout_ids, body.attempt)


@route(router, "GET", "/v1/audits/counts")
async def count_audits(call: Call, query: _Counted) -> AuditCounts:
    return await call.store.count_audits(query.run_id, query.iteration, query.mode)


@route(router, "POST", "/v1/rewards")
async def add_rewards(call: Call, body: messages.AddRewards) -> None:
    await call.store.add_rewards(body.ref, body.rewards)


@route(router, "POST", "/v1/scores")
async def add_scores(call: Call, body: messages.AddScores) -> None:
    await call.store.add_scores(body.rollout_id, body.attempt, body.rewards)


@route(router, "POST", "/v1/rewards/query")
async def list_rewards(call: Call, body: messages.OfRollouts) -> list[Reward]:
    return await call.store.list_rewards(body.rollout_ids, body.attempt)


@route(router, "GET", "/v1/rejections")
async def list_rejections(call: Call) -> list[Rejection]:
    return await call.store.list_rejections()
