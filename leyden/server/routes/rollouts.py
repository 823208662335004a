from __future__ import annotations

from starlette.routing import Router

from leyden.server import messages
from leyden.server.queries import RolloutQuery
from leyden.server.wire import Call, route
from leyden.types import Attempt, AttemptBinding, Rollout

router = Router()


@route(router, "POST", "/v1/rollouts")
async def enqueue(call: Call, body: messages.Enqueue) -> list[Rollout]:
    with call.store.intake.holding() as hold:  # it waits for the writer as it is: many large ones would fill the memory
        hold(call.size)
        return await call.store.enqueue(body.rollouts)


@route(router, "POST", "/v1/rollouts/query")
async def list_rollouts(call: Call, body: RolloutQuery) -> list[Rollout]:
    return await call.store.list_rollouts(**dict(body))  # type: ignore[arg-type]


@route(router, "POST", "/v1/rollouts/wait")
async def wait_rollouts(call: Call, body: messages.Wait) -> list[Rollout]:
    return await call.store.wait_rollouts(body.ids, body.wait, body.done)


@route(router, "POST", "/v1/rollouts/cancel")
async def cancel(call: Call, body: messages.Cancel) -> int:
    return await call.store.cancel(body.rollout_ids, body.run_id, body.group)


@route(router, "POST", "/v1/rollouts/requeue")
async def requeue(call: Call, body: messages.Requeue) -> list[Rollout]:
    return await call.store.requeue(body.rollout_ids, body.request_id)


@route(router, "GET", "/v1/rollouts/{rollout_id}")
async def get_rollout(call: Call) -> Rollout:
    return await call.store.get_rollout(call.path["rollout_id"])


@route(router, "GET", "/v1/rollouts/{rollout_id}/attempts")
async def list_attempts(call: Call) -> list[Attempt]:
    return await call.store.list_attempts(call.path["rollout_id"])


@route(router, "GET", "/v1/rollouts/{rollout_id}/attempts/{attempt}/binding")
async def resolve_attempt(call: Call) -> AttemptBinding:
    return await call.store.resolve_attempt(call.path["rollout_id"], call.number("attempt"))
