"""The store's calls for what happens in attempts: spans, generations, rewards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from leyden.server.executor import Executor
from leyden.server.intake import Intake
from leyden.server.interface import AttemptEnd
from leyden.server.operations import attempts as attempt_ops
from leyden.server.operations import captured as captured_ops
from leyden.server.operations import generations as generation_ops
from leyden.server.operations import rejections as rejection_ops
from leyden.server.operations import rewards as reward_ops
from leyden.server.operations import spans as span_ops
from leyden.server.operations import traces as trace_ops
from leyden.server.queries import SpanQuery, Trace, TraceQuery
from leyden.server.rejected import Rejected
from leyden.server.rows import Batch, batch_of_spans, generation_batch, span_batches
from leyden.types import Generation, LeaseRef, Rejection, Reward, RolloutState, Span


class Capture:
    """A part of ``SQLStore``. Rows are made in threads of the intake: a large body holds up neither the event loop nor the writer."""

    _executor: Executor
    intake: Intake

    async def add_spans(self, ref: LeaseRef, spans: Sequence[Span]) -> int:
        batches = await self.intake.work(lambda: list(span_batches(spans)))
        with self._room_for(batches):
            return sum([await self._executor.write_bulk(batch.size, span_ops.add_spans, ref, batch) for batch in batches])

    async def add_exported(self, batches: Sequence[Batch], rejected: Rejected) -> Rejected:
        """Store spans that name their attempts themselves, or none. Returns ``rejected`` with those of attempts that do not exist; it is
        counted in the commit of the last ones."""
        if rejected.total and not batches:
            batches = [Batch()]
        with self._room_for(batches):
            unknown = [
                await self._executor.write_bulk(batch.size, span_ops.add_exported, batch, rejected if n == len(batches) else Rejected())
                for n, batch in enumerate(batches, 1)
            ]
        return Rejected().merge([rejected, *unknown])

    async def add_generations(self, ref: LeaseRef, generations: Sequence[Generation]) -> None:
        batch = await self.intake.work(generation_batch, ref, generations)
        with self._room_for([batch]):
            await self._executor.write_bulk(batch.size, generation_ops.add_generations, ref, batch)

    @contextmanager
    def _room_for(self, batches: Sequence[Batch]) -> Iterator[None]:
        with self.intake.holding() as hold:
            hold(sum(batch.size for batch in batches))
            yield

    async def add_rewards(self, ref: LeaseRef, rewards: Sequence[Reward]) -> None:
        await self._executor.write(reward_ops.add_rewards, ref, tuple(rewards))

    async def add_scores(self, rollout_id: str, attempt: int, rewards: Sequence[Reward]) -> None:
        await self._executor.write(reward_ops.add_scores, rollout_id, attempt, tuple(rewards))

    async def end_many(self, ends: Sequence[AttemptEnd]) -> list[RolloutState | None]:
        named = [
            span.model_copy(update={"rollout_id": end.ref.rollout_id, "attempt": end.ref.attempt}) for end in ends for span in end.spans
        ]
        batch = await self.intake.work(batch_of_spans, named)
        with self._room_for([batch]):
            return await self._executor.write_bulk(batch.size, attempt_ops.end_many, tuple(ends), batch)

    async def list_spans(self, rollout_id: str, attempt: int | None = None) -> list[Span]:
        return await self._executor.read(span_ops.list_spans, rollout_id, attempt)

    async def query_spans(self, query: SpanQuery) -> list[Span]:
        return await self._executor.read(trace_ops.query_spans, query)

    async def list_traces(self, query: TraceQuery) -> list[Trace]:
        return await self._executor.read(trace_ops.list_traces, query)

    async def list_generations(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Generation]:
        return await self._executor.read(generation_ops.list_generations, rollout_ids, attempt)

    async def list_rewards(self, rollout_ids: Sequence[str], attempt: int | None = None) -> list[Reward]:
        return await self._executor.read(reward_ops.list_rewards, rollout_ids, attempt)

    async def list_rejections(self) -> list[Rejection]:
        return await self._executor.read(rejection_ops.list_rejections)

    async def attempt_of_key(self, key: str) -> tuple[str, int] | None:
        """Whose key this is, ended or not."""
        return await self._executor.read(captured_ops.attempt_of_key, key)
