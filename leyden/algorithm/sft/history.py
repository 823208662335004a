"""How a run stands, read from its directory alone: whoever asks needs neither its driver nor its store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from leyden.algorithm.sft.rundir import RunDir
from leyden.models.registry import Registry


class Standing(StrEnum):
    FINISHED = "finished"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"  # so that going on could only fail again
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class History:
    """``step`` and ``iteration``: what it is doing, or was doing when it stopped; None before its first step."""

    run: str
    state: Standing
    pid: int | None  # of the driver
    step: str | None
    iteration: int | None
    reason: str | None  # of a run that was given up
    champion: str | None
    pass_rates: dict[str, float]  # by version, sampled at T=1
    steps: list[dict[str, Any]]  # the finished ones: iteration, step, seconds, note
    forked_from: str | None

    def as_dict(self) -> dict[str, Any]:
        return vars(self)

    def __str__(self) -> str:
        where = f"in {self.step} of iteration {self.iteration}" if self.step else "before its first step"
        match self.state:
            case Standing.FINISHED:
                return "finished"
            case Standing.RUNNING:
                return f"running (process {self.pid}), {where}"
            case Standing.INTERRUPTED:
                return f"interrupted {where}"
        return f"{self.state}: {self.reason}"


def read_history(run: RunDir) -> History:
    manifests, summary = run.manifests(), run.summary
    ended, pid = run.ended, run.driver
    if summary is not None:
        state = Standing.FINISHED
    elif pid is not None:
        state = Standing.RUNNING
    else:
        state = Standing(ended["state"]) if ended else Standing.INTERRUPTED
    last: dict[str, Any] = next((line for line in reversed(list(run.metrics())) if line.get("started")), {})
    evaluated = [manifest["outputs"] for manifest in manifests if manifest["step"].startswith("evaluate-")]
    measured = summary["versions"] if summary else evaluated
    return History(
        run=run.id,
        state=state,
        pid=pid,
        step=last.get("step"),
        iteration=last.get("iteration"),
        reason=ended["reason"] if ended else None,
        champion=summary["champion"] if summary else Registry(run.models).pointers.champion,
        pass_rates={version["version"]: version["pass_rate"] for version in measured if "pass_rate" in version and "arm" not in version},
        steps=[{name: manifest.get(name) for name in ("iteration", "step", "seconds", "note")} for manifest in manifests],
        forked_from=run.config.get("forked_from"),
    )
