"""What a run came to: each version's pass rate, what each iteration decided and why, where the champion is."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from leyden.algorithm.selection import Selection
from leyden.algorithm.sft.arms import Arms
from leyden.algorithm.sft.cost import Cost
from leyden.algorithm.sft.evaluate import Evaluation
from leyden.algorithm.sft.job import TrainResult
from leyden.algorithm.sft.phases import Collected
from leyden.algorithm.sft.report import Board, clock
from leyden.audit import AuditCounts
from leyden.environments.verdict import Decision, Verdict


@dataclass
class Iteration:
    """Filled in as its steps come to their ends."""

    number: int
    parent: str
    collection: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None
    nothing_to_learn: str | None = None
    candidate: str | None = None
    training: dict[str, Any] | None = None
    promoted: bool = False
    decision: str | None = None  # the gate's: promote, reject or undecided
    reason: str | None = None  # of the decision, or why there was nothing to learn
    gate: dict[str, Any] | None = None  # stages with their numbers, power, warnings
    control: dict[str, Any] | None = None  # the version trained on rows at random, beside base and candidate

    def collected(self, collected: Collected) -> None:
        self.collection = {
            "scored": len(collected.rewards),
            "failed": collected.failed,
            "unscored": collected.unscored,
            "mean_reward": round(sum(collected.rewards) / len(collected.rewards), 4) if collected.rewards else None,
            "calls": collected.harvest.calls,
            "rows": collected.harvest.report.rows,
            "merged_calls": collected.harvest.report.merged_calls,
            "rows_refused": collected.harvest.report.refused,
            "calls_refused": collected.harvest.calls_refused,
            "quarantined": {"calls": collected.harvest.quarantined_calls, "reasons": collected.harvest.reasons},
            "tokens_saved": collected.harvest.report.tokens_saved,
        }

    def selected(self, selection: Selection) -> None:
        self.selection = asdict(selection.report)
        self.nothing_to_learn, self.reason = selection.nothing_to_learn, selection.sentence

    def trained(self, candidate: str, result: TrainResult) -> None:
        self.candidate = candidate
        self.training = {
            "rows": result.rows,
            "steps": result.steps,
            "supervised_tokens": result.supervised_tokens,
            "losses": [round(loss, 4) for loss in result.losses],
            "seconds": round(result.seconds, 1),
        }

    def judged(self, verdict: Verdict) -> None:
        self.promoted, self.decision, self.reason = verdict.promote, verdict.decision, verdict.reason
        self.gate = verdict.model_dump(mode="json", include={"stages", "power", "warnings"})

    def compared(self, arms: Arms) -> None:
        self.control = arms.model_dump(mode="json")


@dataclass
class Summary:
    run: str
    champion: str
    models: Path
    versions: list[tuple[str, Evaluation | None]] = field(default_factory=list)
    iterations: list[Iteration] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # by kind of step
    cost: Cost = field(default_factory=Cost)  # of all drivers, starts and interrupted steps included
    rollout_tokens: dict[str, int] = field(default_factory=dict)  # read and sampled, in collection and evaluation
    proxy: dict[str, int] = field(default_factory=dict)  # calls, and whatever was odd about them, counted by kind
    fidelity: AuditCounts = field(default_factory=AuditCounts)  # of all calls that the store has of this run

    def add_version(self, version: str, evaluation: Evaluation | None) -> None:
        self.versions.append((version, evaluation))

    def add_iteration(self, iteration: Iteration) -> Iteration:
        self.iterations.append(iteration)
        return iteration

    def finish(
        self,
        champion: str,
        seconds: dict[str, float],
        cost: Cost,
        rollout_tokens: dict[str, int],
        proxy: dict[str, int],
        fidelity: AuditCounts,
    ) -> None:
        self.champion, self.proxy, self.fidelity = champion, dict(proxy), fidelity
        self.cost = cost
        self.rollout_tokens = {name: rollout_tokens[name] for name in ("read", "sampled")}
        self.seconds = {name: round(value, 1) for name, value in seconds.items()}

    @property
    def nothing_to_learn(self) -> str | None:
        """The sentence that says why, where the last iteration ended so."""
        last = self.iterations[-1] if self.iterations else None
        return last.reason if last and last.nothing_to_learn else None

    @property
    def champion_path(self) -> Path:
        return self.models / self.champion

    @property
    def tokens(self) -> dict[str, int]:
        return self.rollout_tokens | {
            "saved_by_merging": sum(it.collection["tokens_saved"] for it in self.iterations if it.collection),
            "learnt": sum(it.training["supervised_tokens"] for it in self.iterations if it.training),
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "format": 1,
            "run": self.run,
            "champion": self.champion,
            "champion_path": str(self.champion_path),
            "versions": [evaluation.as_summary() if evaluation else {"version": version} for version, evaluation in self.versions],
            "iterations": [vars(iteration) for iteration in self.iterations],
            "tokens": self.tokens,
            "proxy": self.proxy,
            "fidelity": self.fidelity.model_dump(mode="json"),
            "seconds": self.seconds | {"total": round(self.cost.total, 1)},
            "own_cost": self.cost.as_dict(),
        }


_TOLD = {Decision.PROMOTE: "promoted", Decision.REJECT: "rejected", Decision.UNDECIDED: "undecided"}


def print_summary(summary: Summary, console: Console, board: Board) -> None:
    """The tables to ``console`` (stdout); what they mean and what to type next to the board."""
    if any(evaluation for _, evaluation in summary.versions):
        table = Table(title="pass rate on held-out tasks, with 95 % interval")
        for heading, justify in (("version", "left"), ("T=1", "right"), ("T=0", "right"), ("tasks", "right"), ("", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        for version, evaluation in summary.versions:
            if evaluation:
                mark = "champion" if version == summary.champion else evaluation.arm or ""
                table.add_row(version, str(evaluation.sampled), str(evaluation.greedy), str(evaluation.sampled.n), mark)
        console.print(table)
    for iteration in summary.iterations:
        if iteration.control:
            arms = Arms.model_validate(iteration.control)
            console.print(arms.table(iteration.number))
            console.print(arms.sentence or "", style="dim", highlight=False)
    costs = Table(title="cost")
    costs.add_column("step")
    costs.add_column("time", justify="right")
    for name, seconds in summary.seconds.items():
        costs.add_row(name, clock(seconds))
    costs.add_row("total", clock(summary.cost.total), style="bold")
    console.print(costs)
    console.print(str(summary.cost), style="dim", highlight=False, soft_wrap=True)
    tokens = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in summary.tokens.items())
    console.print(f"tokens: {tokens}", style="dim", highlight=False)
    calls = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in summary.proxy.items())
    console.print(f"proxy: {calls}", style="dim", highlight=False)
    console.print(f"token fidelity: {summary.fidelity}", style="dim" if summary.fidelity.clean else "yellow", highlight=False)
    for iteration in summary.iterations:
        if iteration.nothing_to_learn:
            board.say(f"iteration {iteration.number}: nothing to learn: {iteration.reason}. Nothing was trained; this is a normal ending.")
            board.say("  try more tasks, more attempts a task (--attempts), or tasks that the model sometimes solves")
        elif iteration.gate is not None:
            kept = "" if iteration.promoted else f" {iteration.parent} stays the champion."
            board.say(f"iteration {iteration.number}: {_TOLD[Decision(iteration.decision or '')]}.{kept} {iteration.reason}")
            for line in filter(None, [iteration.gate["power"], *(f"warning: {text}" for text in iteration.gate["warnings"])]):
                board.say(f"  {line}")
    board.say(f"champion: {summary.champion_path}")
    board.say(f"next: {_leyden()} serve {summary.champion_path}")


def _leyden() -> str:
    """How to type our command line here: ``make demo`` runs in an environment that nobody has activated."""
    return "leyden" if shutil.which("leyden") else os.path.relpath(Path(sys.executable).with_name("leyden"))
