"""The store's calls for whoever operates it: can it work, how much does it do, how far behind is it."""

from __future__ import annotations

from dataclasses import dataclass

from leyden.errors import Unavailable
from leyden.server.backlog import Waiting
from leyden.server.database import Database, Sizes
from leyden.server.executor import Executor
from leyden.server.intake import Intake
from leyden.server.metrics import Metrics
from leyden.server.operations import metrics as metric_ops
from leyden.server.operations.metrics import Stored
from leyden.server.waiting import ClaimDesk, FinalWatch


@dataclass(frozen=True)
class Measured:
    """At one moment. ``stored``: None while the database cannot be read."""

    metrics: Metrics
    backlog: Waiting
    held: int  # bytes of captured data under way, before the backlog
    claims_waiting: int
    rollouts_watched: int
    sizes: Sizes | None
    swept_at: int  # microseconds, by the database's time
    stored: Stored | None
    dialect: str  # ``sqlite`` or ``postgresql``


class Operating:
    """A part of ``SQLStore``."""

    _executor: Executor
    _database: Database
    _desk: ClaimDesk
    _watch: FinalWatch
    _last_sweep: int
    intake: Intake

    @property
    def metrics(self) -> Metrics:
        return self._executor.metrics

    @property
    def backlog_is_full(self) -> bool:
        return self._executor.waiting().full

    async def try_write(self) -> None:
        """Commit something that nobody reads. Raises what a write raises."""
        await self._executor.write(metric_ops.touch)

    async def try_read(self) -> None:
        await self._executor.read(metric_ops.look)

    async def measure(self) -> Measured:
        try:
            stored = await self._executor.read(metric_ops.stored)
        except Unavailable:  # that it is away is one of the things to be told
            stored = None
        return Measured(
            metrics=self.metrics,
            backlog=self._executor.waiting(),
            held=self.intake.held,
            claims_waiting=self._desk.waiting,
            rollouts_watched=len(self._watch.ids),
            sizes=self._database.sizes(),
            swept_at=self._last_sweep,
            stored=stored,
            dialect="postgresql" if self._database.shared else "sqlite",
        )
