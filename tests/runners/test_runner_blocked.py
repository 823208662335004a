"""When a runner may take its event loop for blocked, and end itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leyden.runners import Runner, RunnerConfig, rollout
from leyden.runners import runner as runner_module
from leyden.runners.watcher import Watcher
from leyden.server.client import StoreClient
from leyden.types import LeaseRef, Verdict


def test_only_a_loop_that_leaves_a_report_untaken_while_an_attempt_must_stop_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats are lease / 4 apart, so what an earlier report left behind would look like a long wait at the next."""

    @rollout
    async def agent(task: Any) -> float:
        return 1.0

    async def scenario() -> None:
        blocked: list[bool] = []

        class Blocked(Watcher):
            def on_blocked(self) -> None:
                blocked.append(True)

        runner = Runner(agent, lambda: StoreClient("http://127.0.0.1:9"), RunnerConfig(), Blocked())
        held, ended = LeaseRef(rollout_id="held", attempt=1, token=1), LeaseRef(rollout_id="ended", attempt=1, token=1)
        runner._held[held] = runner_module._Held.__new__(runner_module._Held)
        monkeypatch.setattr(runner, "_take_beats", lambda *_: setattr(runner, "_untaken_since", None))
        loop, now, waiting = asyncio.get_running_loop(), 100.0, []
        monkeypatch.setattr(runner_module.time, "monotonic", lambda: now)
        report = runner._reporter()

        # The loop takes the first report before the heart's thread goes on, the second one later.
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call, *args: call(*args))
        report([held], [Verdict.HELD], now)
        now += 15.0
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call, *args: waiting.append((call, args)))
        report([held], [Verdict.LOST], now)
        assert not blocked

        # It leaves the second one lying: blocked, but not for an attempt that has ended meanwhile.
        now += 15.0
        report([ended], [Verdict.LOST], now)
        assert not blocked
        report([held], [Verdict.LOST], now)
        assert blocked == [True]

    asyncio.run(scenario())
