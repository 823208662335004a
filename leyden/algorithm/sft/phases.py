"""What each step of the loop does. The order they come in is ``loop.py``'s to tell."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from leyden.algorithm.dataset import row_id, supervised_tokens, write_rows
from leyden.algorithm.eos import eos_token_ids
from leyden.algorithm.rows import Row, RowsReport, build_rows
from leyden.algorithm.selection import Selection, select
from leyden.algorithm.sft.collect import Patience, count_tokens, read_captured, run_rollouts
from leyden.algorithm.sft.driver import Driver
from leyden.algorithm.sft.evaluate import Decision, Evaluation, decide, measure
from leyden.algorithm.sft.job import TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.serving import MakeEngine, Serving
from leyden.algorithm.sft.settings import GREEDY, SAMPLED, SFTConfig
from leyden.algorithm.sft.steps import Steps, fingerprint
from leyden.algorithm.sft.tasks import LoopTask
from leyden.algorithm.sft.train import train
from leyden.algorithm.triplets import GenerationsToTriplets
from leyden.errors import Unavailable
from leyden.models.registry import Registry, Version
from leyden.models.verifier import verify_in_child
from leyden.server.interface import Store
from leyden.types import Episode, Mode, NewRollout

if TYPE_CHECKING:
    from leyden.proxy import LLMProxy


@dataclass(frozen=True)
class Parts:
    """What the loop works with. Whoever brings them ends them; engines and training children are the loop's own."""

    run: RunDir
    board: Board
    store: Store
    proxy: LLMProxy
    registry: Registry
    make_engine: MakeEngine
    marker: str  # of every child process


@dataclass(frozen=True)
class Collected:
    rows: list[Row]
    rewards: list[float]  # of every scored attempt
    report: RowsReport
    calls_refused: dict[str, int]
    failed: int
    unscored: int


class Phases:
    """The steps of one run, bound to its parts and its tasks."""

    def __init__(
        self, parts: Parts, config: SFTConfig, train_tasks: Sequence[LoopTask], heldout: Sequence[LoopTask], driver: Driver
    ) -> None:
        self.parts = parts
        self.config = config
        self.train_tasks = train_tasks
        self.heldout = heldout
        self.tokens: Counter[str] = Counter()  # read and sampled by the model in all rollouts, each one's last attempt
        self.steps = Steps(parts.run, parts.board, driver.epoch)
        self.serving = Serving(parts.proxy, driver, parts.make_engine, config.max_tokens)
        rollout = config.rollout
        self._patience = Patience(config.max_failed_share, config.runner_patience, rollout.attempt_timeout * rollout.max_attempts + 120)

    async def serve(self, iteration: int, version: Version) -> None:
        """Put the version behind the proxy, unless it is there already."""
        if self.serving.version == version.name:
            return
        with self.steps.open(iteration, f"serve-{version.name}", f"serve {version.name}", {"version": version.name}) as step:
            await self.serving.start(version.name, version.path)
            step.view.update(note="ready")

    async def collect(self, iteration: int, version: Version) -> Collected:
        """Let the runners try every training task with the served version, and turn what the proxy captured into rows."""
        config, parts = self.config, self.parts
        work = [(task, k) for task in self.train_tasks for k in range(config.attempts)]
        inputs = {
            "version": version.name, "tasks": _digest(self.train_tasks), "attempts": config.attempts, "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }  # fmt: skip
        with self.steps.open(iteration, "collect", f"collect with {version.name}", inputs, total=len(work)) as step:
            resources = await self.serving.resources(config.temperature)
            rollouts = self._rollouts(iteration, "collect", Mode.TRAIN, resources, work)
            ended = await run_rollouts(parts.store, rollouts, self._patience, parts.board, step.view)
            scored = {end.rollout.id: end.reward for end in ended if end.reward is not None}
            generations, rewards = await read_captured(parts.store, [end.rollout.id for end in ended])
            self.tokens += count_tokens(generations)
            adapter = GenerationsToTriplets()
            triplets = adapter.adapt([item for item in generations if item.rollout_id in scored], rewards)
            tasks = {end.rollout.id: task.id for end, (task, _) in zip(ended, work, strict=True)}
            rows, report = build_rows(triplets, tasks, eos_token_ids(version.path), config.rows)
            collected = Collected(
                rows=rows,
                rewards=list(scored.values()),
                report=report,
                calls_refused={str(reason): count for reason, count in adapter.refused.items()},
                failed=sum(end.failed for end in ended),
                unscored=sum(not end.failed and end.reward is None for end in ended),
            )
            passed = sum(reward >= config.selection.min_reward for reward in collected.rewards)
            step.outputs = {
                "rollouts": [end.rollout.id for end in ended],
                "scored": len(scored),
                "passed": passed,
                "failed": collected.failed,
                "unscored": collected.unscored,
                "calls_refused": collected.calls_refused,
                "rewards_unplaced": adapter.unplaced_rewards,
                "rows": asdict(report),
            }
            failed = f", {collected.failed} failed" if collected.failed else ""
            refused = "".join(f", {count} {reason}" for reason, count in (report.refused | collected.calls_refused).items())
            step.view.update(note=f"{passed} of {len(work)} passed, {len(rows)} rows{refused}{failed}")
            parts.run.metric(iteration=iteration, step="collect", passed=passed, planned=len(work), **asdict(report))
        return collected

    def select(self, iteration: int, collected: Collected) -> Selection:
        """Keep the best, or say why there is nothing to learn."""
        config = self.config.selection.model_copy(update={"seed": self.config.selection.seed + self.config.seed + iteration})
        inputs = {"selection": config.model_dump(mode="json"), "rows": fingerprint([row_id(row) for row in collected.rows])}
        with self.steps.open(iteration, "select", "select", inputs) as step:
            selection = select(collected.rows, config, collected.rewards)
            step.outputs = {
                **asdict(selection.report),
                "nothing_to_learn": selection.nothing_to_learn,
                "sentence": selection.sentence,
                "row_ids": [row_id(row) for row in selection.rows],
            }
            report = selection.report
            chosen = f"{report.kept} of {report.candidates} rows, {report.sampled_tokens} tokens to learn"
            step.view.update(note=selection.sentence or chosen)
            self.parts.run.metric(iteration=iteration, step="select", kept=report.kept, candidates=report.candidates)
        return selection

    async def train(self, iteration: int, parent: Version, rows: Sequence[Row]) -> tuple[Version, TrainResult]:
        """Train on the rows in a child, check what it saved in another, and enter it in the registry. Needs the machine for itself."""
        parts, registry = self.parts, self.parts.registry
        dataset = parts.run.path / f"iteration_{iteration}" / "rows.arrow"
        digest = write_rows(dataset, rows)
        with registry.new_version(parent) as draft:
            job = TrainJob(
                base_dir=registry.base_of(parent).path,
                parent_dir=parent.path,
                parent_adapter_dir=parent.adapter_dir,
                dataset_path=dataset,
                dataset_sha256=digest,
                output_dir=draft.path,
                config=self.config.train,
                expected_supervised_tokens=supervised_tokens(rows),
            )
            result = await self._train(iteration, draft.name, job)
            await self._verify(iteration, draft.name, job)
            version = draft.commit(
                dataset_sha256=digest,
                training=job.config.model_dump(mode="json"),
                metrics=result.model_dump(mode="json", exclude={"files"}),
                run_id=parts.run.id,
                iteration=iteration,
            )
        return version, result

    async def _train(self, iteration: int, version: str, job: TrainJob) -> TrainResult:
        inputs = job.model_dump(mode="json", exclude={"output_dir", "dataset_path"})
        with self.steps.open(iteration, "train", f"train {version}", inputs) as step:

            def show(progress: TrainProgress) -> None:
                loss = f"loss {progress.loss:.3f}" if progress.loss is not None else "starting"
                step.view.update(done=progress.step, total=progress.steps, note=loss, left=progress.seconds_left)
                self.parts.run.metric(iteration=iteration, **{"step": "train", "train_step": progress.step, "loss": progress.loss})

            result = await train(
                job,
                on_progress=show,
                log_path=self.parts.run.log(f"train-{version}"),
                marker=self.parts.marker,
                timeout=self.config.train_timeout,
            )
            step.outputs = result.model_dump(mode="json", exclude={"files"})
            loss = f"mean loss {fmean(result.losses):.3f} over {result.steps} steps"
            step.view.update(note=f"{loss}, {result.supervised_tokens} tokens learnt")
        return result

    async def _verify(self, iteration: int, version: str, job: TrainJob) -> None:
        log_path = self.parts.run.log(f"verify-{version}")
        with self.steps.open(iteration, "verify", f"verify {version}", {"version": version}) as step:
            report = await verify_in_child(
                job.output_dir,
                job.base_dir,
                job.output_dir / "adapter",
                parent_dir=job.parent_dir,
                marker=self.parts.marker,
                log_path=log_path,
            )
            step.outputs = report.model_dump(mode="json")
            if not report.ok:
                wrong = report.failures[0]
                raise Unavailable(f"{version} is not what was trained: {wrong.name}: {wrong.detail}", f"it was discarded; see {log_path}")
            step.view.update(note=f"{len(report.checks)} checks passed")

    async def evaluate(self, iteration: int, version: Version) -> Evaluation | None:
        """Measure the served version on the held-out tasks, sampled and greedily; None without such tasks."""
        if not self.heldout:
            return None
        n, passing = len(self.heldout), self.config.selection.min_reward
        once = [(task, 0) for task in self.heldout]
        inputs = {"version": version.name, "tasks": _digest(self.heldout), "max_tokens": self.config.max_tokens}
        with self.steps.open(iteration, f"evaluate-{version.name}", f"evaluate {version.name}", inputs, total=2 * n) as step:
            rollouts = []
            for temperature in (SAMPLED, GREEDY):
                resources = await self.serving.resources(temperature)
                rollouts += self._rollouts(iteration, f"evaluate-t{temperature:g}", Mode.VAL, resources, once)
            ended = await run_rollouts(self.parts.store, rollouts, self._patience, self.parts.board, step.view)
            generations, _ = await read_captured(self.parts.store, [end.rollout.id for end in ended])
            self.tokens += count_tokens(generations)
            sampled, greedy = measure(ended[:n], SAMPLED, passing), measure(ended[n:], GREEDY, passing)
            evaluation = Evaluation(version=version.name, sampled=sampled, greedy=greedy)
            step.outputs = evaluation.as_summary() | {"rollouts": [end.rollout.id for end in ended]}
            step.view.update(note=f"T=1 {evaluation.sampled}, T=0 {evaluation.greedy}")
            self.parts.run.metric(iteration=iteration, step="evaluate", **evaluation.as_summary())
        return evaluation

    def promote(self, iteration: int, candidate: Version, before: Evaluation | None, after: Evaluation | None) -> Decision:
        """Make the candidate the champion if the gate says so."""
        inputs = {"candidate": candidate.name, "alpha": self.config.alpha}
        with self.steps.open(iteration, "promote", f"promote {candidate.name}", inputs) as step:
            if before is None or after is None:
                decision = Decision(promote=True, verdict=f"{candidate.name} is verified; there are no held-out tasks to judge it by")
            else:
                decision = decide(before, after, self.config.alpha)
            if decision.promote:
                self.parts.registry.promote(candidate.name, decision.reason)
            step.outputs = decision.model_dump()
            step.view.update(note=("yes: " if decision.promote else "no: ") + decision.verdict)
        return decision

    def _rollouts(
        self, iteration: int, step: str, mode: Mode, resources: str, work: Sequence[tuple[LoopTask, int]]
    ) -> list[NewRollout]:
        run_id = self.parts.run.id
        return [
            NewRollout(
                input=task.input,
                mode=mode,
                run_id=run_id,
                iteration=iteration,
                resources_id=resources,
                config=self.config.rollout,
                group=task.id,
                episode=Episode(episode_spec_id=task.id, seed=self.config.seed),
                metadata={"step": step, "k": k},
                idempotency_key=f"{run_id}/{iteration}/{step}/{task.id}/{k}",
            )
            for task, k in work
        ]


def _digest(tasks: Sequence[LoopTask]) -> dict[str, Any]:
    return {"n": len(tasks), "sha256": hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()}
