"""What every driver of a run does in its store, wherever that is: be the only one, lend the model, read back what has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from leyden.environments.attempt import AttemptResult, StopReason
from leyden.environments.plan import Key, Plan
from leyden.environments.stored import RECORD_ATTRIBUTE, decode_attempt
from leyden.errors import Busy, LeaseLost, Unavailable
from leyden.server.interface import Store
from leyden.types import LLM, FailureKind, Rollout, RolloutState, Run, Span

LEASE = 60.0  # seconds
CHUNK = 1000  # rollouts in one request
LLM_NAME = "llm"

_STOPS = {FailureKind.TIMEOUT: StopReason.TIMEOUT}

T = TypeVar("T")


@asynccontextmanager
async def driving(store: Store, run_id: str, asked: Mapping[str, Any]) -> AsyncIterator[Run]:
    """Be the run's driver. Whoever calls holds the eval's lock: a former driver is dead, whatever the store still thinks of it.

    The block is cancelled, and ``LeaseLost`` raised, when somebody takes the run over all the same.
    """
    run = await store.start_run(run_id, dict(asked), LEASE, take_over=True)
    try:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(_keep(store, run))
            yield run
            keeping.cancel()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _keep(store: Store, run: Run) -> None:
    while True:
        await asyncio.sleep(LEASE / 4)
        with suppress(Unavailable, Busy):  # the next one is in time
            try:
                await store.keep_run(run.id, run.epoch, LEASE)
            except LeaseLost as error:
                raise LeaseLost(f"eval {run.id} has been taken over by another driver", "let that one finish it") from error


@asynccontextmanager
async def lent(store: Store, llm: LLM | None) -> AsyncIterator[str | None]:
    """The id of resources that hold the model while the block lasts, behind a proxy that captures every call; None without a model."""
    if llm is None:
        yield None
        return
    if llm.proxied:
        yield (await store.add_resources({LLM_NAME: llm})).id
        return
    from leyden.proxy import LLMProxy

    proxy = LLMProxy(store)
    key = {"api_key": llm.api_key} if llm.api_key else {}
    proxy.update_model_list([
        {
            "model_name": llm.model,
            "litellm_params": {"model": f"hosted_vllm/{llm.model}", "api_base": llm.endpoint, **key},
            "model_info": {"id": llm.deployment or "eval", "checkpoint": llm.checkpoint},
        }
    ])  # fmt: skip
    await proxy.start()
    try:
        behind = proxy.as_resource(llm.model, llm.sampling_parameters)
        resources = await store.add_resources({LLM_NAME: behind})
        try:
            yield resources.id
        finally:
            await store.retire_resources(resources.id)
    finally:
        await proxy.stop()


async def enqueue(store: Store, plan: Plan, run_id: str, resources_id: str | None, remote: bool) -> dict[Key, Rollout]:
    """Queue the whole plan; what an earlier driver queued stays what it has become."""
    found: dict[Key, Rollout] = {}
    keys = plan.keys
    for batch in batches(plan.rollouts(run_id, resources_id, remote), CHUNK):
        queued = await store.enqueue(batch)
        found.update(zip(islice(keys, len(queued)), queued, strict=True))
    return found


async def named_generations(store: Store, attempt: AttemptResult) -> AttemptResult:
    """With the ids of the calls that the proxy captured, in order."""
    if attempt.run is None or attempt.run.generation_ids or attempt.rollout_id is None:
        return attempt
    found = await store.list_generations([attempt.rollout_id], attempt.attempt)
    ids = tuple(dict.fromkeys(generation.id for generation in found if not generation.late))
    return replace(attempt, run=replace(attempt.run, generation_ids=ids)) if ids else attempt


def attempt_of(rollout: Rollout, index: int, span: Span | None, output_type: Any) -> AttemptResult | None:
    """How a final rollout ended, by the record in its span; None for one that was cancelled before anybody had tried it to its end.

    One without a record (its runner went away too often, or was stopped by the store) is an error without output.
    """
    if span is not None and isinstance(record := span.attributes.get(RECORD_ATTRIBUTE), str):
        return decode_attempt(record, output_type)
    if rollout.state is RolloutState.CANCELLED:
        return None
    failure = rollout.failure
    return AttemptResult(
        index=index,
        run=None,
        score=None,
        stop_reason=_STOPS.get(failure, StopReason.ERROR) if failure else StopReason.ERROR,
        duration_seconds=0.0,
        error=f"{failure or rollout.state}: {rollout.error or 'it left no record'}",
        error_type=str(failure or rollout.state),
        rollout_id=rollout.id,
        attempt=rollout.attempt,
        seed=rollout.episode.seed,
    )


def in_order_of_ending(rollouts: Mapping[Key, Rollout]) -> Iterator[tuple[Key, Rollout]]:
    """The final ones, as they ended: what was decided on the way is decided again."""
    final = [(key, rollout) for key, rollout in rollouts.items() if rollout.state.final]
    return iter(sorted(final, key=lambda item: (item[1].finished_at or 0, item[0])))


def batches(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
