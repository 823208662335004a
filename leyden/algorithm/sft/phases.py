"""What each step of the loop does. The order they come in is ``loop.py``'s to tell.

Each asks first whether an earlier driver of this run has finished it, and then only brings back what came out.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from leyden.algorithm.collapse import check_collapse, mean_length
from leyden.algorithm.dataset import row_id
from leyden.algorithm.harvest import Harvest, Learner, harvest
from leyden.algorithm.quarantine import write_quarantine
from leyden.algorithm.random_control import ARM, random_rows
from leyden.algorithm.refusals import Refusal
from leyden.algorithm.rows import Row
from leyden.algorithm.selection import NothingToLearn, Selection, select
from leyden.algorithm.sft.ahead import TrainerAhead
from leyden.algorithm.sft.collect import Captured, Ended, Patience, count_tokens, read_call_times, read_captured, read_ended, run_rollouts
from leyden.algorithm.sft.cost import STOP, seconds_covered
from leyden.algorithm.sft.driver import Driver
from leyden.algorithm.sft.evaluate import Evaluation, judge_versions, measure
from leyden.algorithm.sft.improve import Improvement
from leyden.algorithm.sft.job import TrainResult
from leyden.algorithm.sft.report import Board
from leyden.algorithm.sft.rundir import RunDir
from leyden.algorithm.sft.serving import DRAIN, EngineDied, MakeEngine, Serving
from leyden.algorithm.sft.settings import GREEDY, SAMPLED, SFTConfig
from leyden.algorithm.sft.steps import Step, Steps, fingerprint
from leyden.algorithm.sft.tasks import LoopTask
from leyden.environments.gate import Gate
from leyden.environments.judging import judge
from leyden.environments.outcomes import Outcomes
from leyden.environments.verdict import Decision, Verdict
from leyden.errors import Conflict
from leyden.models.registry import Registry
from leyden.models.version import Version
from leyden.server.interface import Store
from leyden.types import Episode, Mode, NewRollout

if TYPE_CHECKING:
    from leyden.proxy import LLMProxy

Work = Sequence[tuple[LoopTask, int]]  # which task, for which time

MAX_RESTARTS = 2  # of an engine that dies, also while it starts again, in one step


@dataclass(frozen=True)
class Parts:
    """What the loop works with. Whoever brings them ends them; engines and training children are the loop's own."""

    run: RunDir
    board: Board
    store: Store
    proxy: LLMProxy
    registry: Registry
    make_engine: MakeEngine
    trainer: TrainerAhead
    marker: str  # of every child process


@dataclass(frozen=True)
class Collected:
    harvest: Harvest
    rewards: list[float]  # of every scored attempt
    failed: int
    unscored: int

    @property
    def rows(self) -> list[Row]:
        return self.harvest.rows

    @property
    def digest(self) -> str:
        """Equal for what is read back from the store after a driver's death."""
        rows = [(row_id(row), row.reward, len(row.input_ids), row.sampled_tokens) for row in self.rows]
        return fingerprint([rows, self.rewards, self.failed, self.unscored])


@dataclass(frozen=True)
class _Batch:
    """Rollouts of one step at one temperature. ``name`` is part of their keys."""

    name: str
    iteration: int
    mode: Mode
    temperature: float
    work: Work


class Phases:
    """The steps of one run, bound to its parts and its tasks."""

    def __init__(
        self,
        parts: Parts,
        config: SFTConfig,
        train_tasks: Sequence[LoopTask],
        heldout: Sequence[LoopTask],
        regression: Sequence[LoopTask],
        driver: Driver,
    ) -> None:
        self.parts = parts
        self.config = config
        self.train_tasks = train_tasks
        self.heldout = heldout
        self.regression = regression
        self.driver = driver
        self.first_length: float | None = None  # of a row in the run's first collection
        self.tokens: Counter[str] = Counter()  # read and sampled by the model in all rollouts, each one's last attempt
        self.calls: Counter[str] = Counter()  # what the proxy counted in finished steps
        self.steps = Steps(parts.run, parts.board, driver)
        self.serving = Serving(parts.proxy, driver, parts.make_engine, config.max_tokens)
        rollout = config.rollout
        longest = rollout.attempt_timeout * (rollout.max_attempts + rollout.max_lost) + 120
        self._patience = Patience(config.max_failed_share, config.runner_patience, longest)

    def begin(self) -> Version:
        """The version this run set out to improve. Removes what an earlier driver left half done.

        Raises ``Conflict`` where the store is not the one that the run has been in.
        """
        run, registry = self.parts.run, self.parts.registry
        manifests = run.manifests()
        if any(manifest["epoch"] >= self.driver.epoch for manifest in manifests):
            raise Conflict(
                f"the store does not know run {run.id}, of which {len(manifests)} steps are finished",
                "go on with the store that it ran with, or start afresh with --new",
            )
        trained = ("train", f"train-{ARM}")
        registry.sweep_drafts(keep=[manifest["outputs"]["draft"] for manifest in manifests if manifest["step"] in trained])
        return registry.get(run.begin_with(registry.get("@champion").name))

    async def collect(self, iteration: int, version: Version) -> Collected:
        """Let the runners try every training task with this version, and turn what the proxy captured into rows."""
        config, parts = self.config, self.parts
        work = [(task, k) for task in self.train_tasks for k in range(config.attempts)]
        inputs = {
            "version": version.name, "tasks": _digest(self.train_tasks), "attempts": config.attempts, "temperature": config.temperature,
            "max_tokens": config.max_tokens, "rows": config.rows.model_dump(mode="json"), "seed": config.seed,
            "attribution": config.attribution.model_dump(mode="json"),
        }  # fmt: skip
        done = self.steps.finished(iteration, "collect", inputs)
        if done is not None:
            self.steps.count(iteration, _serve_step(version))
            self.calls.update(done["proxy"])
            ended = await read_ended(parts.store, done["rollouts"])
            collected = await self._collected(version, ended, work, await self._captured(ended))
            if collected.digest != done["digest"]:
                raise Conflict(
                    f"the store holds other rollouts than those that run {parts.run.id} collected in iteration {iteration}",
                    "go on with the store that it ran with, or start afresh with --new",
                )
            return collected
        await self._serve(iteration, version)
        async with self.steps.open(iteration, "collect", f"collect with {version.name}", inputs, total=len(work)) as step:
            batch = _Batch("collect", iteration, Mode.TRAIN, config.temperature, work)
            ended = await self._run(version, step, [batch], near_end=parts.trainer.prepare)
            captured = await self._captured(ended, step)
            collected = await self._collected(version, ended, work, captured)
            crop = collected.harvest
            passed = sum(reward >= config.selection.min_reward for reward in collected.rewards)
            step.outputs |= {
                "rollouts": [end.rollout.id for end in ended],
                "digest": collected.digest,
                "scored": len(collected.rewards),
                "passed": passed,
                "failed": collected.failed,
                "unscored": collected.unscored,
                "calls": crop.calls,
                "calls_refused": crop.calls_refused,
                "rewards_unplaced": crop.rewards_unplaced,
                "rows": asdict(crop.report),
                "quarantine": write_quarantine(parts.run.path / f"iteration_{iteration}", crop),
            }
            failed = f", {collected.failed} failed" if collected.failed else ""
            reasons = Counter(crop.report.refused) + Counter(crop.calls_refused)
            refused = "".join(f", {count} {reason}" for reason, count in reasons.items())
            step.view.update(note=f"{passed} of {len(work)} passed, {len(collected.rows)} rows{refused}{failed}")
            parts.run.metric(iteration=iteration, step="collect", passed=passed, planned=len(work), **asdict(crop.report))
        return collected

    async def _captured(self, ended: Sequence[Ended], step: Step | None = None) -> Captured:
        """What the store holds of rollouts that have ended; ``step``: that they were run in, which learns when they were at an engine."""
        generations, rewards = await read_captured(self.parts.store, [end.rollout.id for end in ended])
        if step is not None:
            calls = await read_call_times(self.parts.store, ended, generations)
            step.generation = seconds_covered(calls, step.started_at, time.time_ns() // 1000)
        return generations, rewards

    async def _collected(self, version: Version, ended: Sequence[Ended], work: Work, captured: Captured) -> Collected:
        """Rollouts that have ended, as rows."""
        generations, rewards = captured
        scored = {end.rollout.id: end.reward for end in ended if end.reward is not None}
        self.tokens += count_tokens(generations)
        tasks = {end.rollout.id: task.id for end, (task, _) in zip(ended, work, strict=True)}
        left_out = {end.rollout.id: Refusal.ATTEMPT_FAILED if end.failed else Refusal.NO_REWARD for end in ended if end.reward is None}
        learner, config = Learner.of(version.name, version.path), self.config
        crop = await asyncio.to_thread(harvest, generations, rewards, tasks, learner, config.rows, config.attribution, left_out)
        return Collected(
            harvest=crop,
            rewards=list(scored.values()),
            failed=sum(end.failed for end in ended),
            unscored=sum(not end.failed and end.reward is None for end in ended),
        )

    async def select(self, iteration: int, collected: Collected) -> Selection:
        """Keep the best, or say why there is nothing to learn. The same rows and settings give the same selection: it costs no waiting."""
        config = self.config.selection.model_copy(update={"seed": self._seed(iteration)})
        inputs = {
            "selection": config.model_dump(mode="json"), "rows": collected.digest, "collapse": self.config.collapse.model_dump(mode="json"),
        }  # fmt: skip
        selection = select(collected.rows, config, collected.rewards)
        guards = check_collapse(collected.rewards, collected.rows, selection.rows, self.first_length, self.config.collapse)
        self.first_length = self.first_length or mean_length(collected.rows)
        tripped = [guard for guard in guards if guard.tripped]
        if tripped and self.config.collapse.action == "stop" and not selection.nothing_to_learn:
            sentence = "; ".join(guard.message for guard in tripped)
            selection = replace(selection, rows=[], nothing_to_learn=NothingToLearn.COLLAPSE, sentence=sentence)
        if self.steps.finished(iteration, "select", inputs) is not None:
            return selection
        async with self.steps.open(iteration, "select", "select", inputs) as step:
            step.outputs = {
                **asdict(selection.report),
                "nothing_to_learn": selection.nothing_to_learn,
                "sentence": selection.sentence,
                "collapse": [asdict(guard) for guard in guards],
                "row_ids": [row_id(row) for row in selection.rows],
            }
            report = selection.report
            chosen = f"{report.kept} of {report.candidates} rows, {report.sampled_tokens} tokens to learn"
            step.view.update(note=selection.sentence or chosen)
            for guard in tripped:
                self.parts.board.say(f"  {guard.name}: {guard.message}")
            self.parts.run.metric(iteration=iteration, step="select", kept=report.kept, candidates=report.candidates)
        return selection

    async def train(self, iteration: int, parent: Version, rows: Sequence[Row]) -> tuple[Version, TrainResult]:
        """Train on the rows in a child, check what it saved in another, and enter it in the registry."""
        return await self._improve(Improvement(self.parts, self.config, self.steps, iteration, parent, rows))

    async def control(self, iteration: int, parent: Version, collected: Collected, selected: int) -> tuple[Version, Evaluation | None]:
        """The same training on ``selected`` rows at random, and its measurement. Nothing is promoted."""
        rows = random_rows(collected.rows, selected, self._seed(iteration))
        version, _ = await self._improve(Improvement(self.parts, self.config, self.steps, iteration, parent, rows, ARM))
        return version, await self.evaluate(iteration, version)

    async def _improve(self, improvement: Improvement) -> tuple[Version, TrainResult]:
        if not improvement.trained and not self.config.serve_while_training:
            started = time.monotonic()
            await self.serving.stop(drain=DRAIN)
            self.parts.run.metric(iteration=improvement.iteration, step=STOP, seconds=round(time.monotonic() - started, 3))
        return await improvement.make()

    def _seed(self, iteration: int) -> int:
        return self.config.selection.seed + self.config.seed + iteration

    async def evaluate(self, iteration: int, version: Version) -> Evaluation | None:
        """Measure this version on the held-out tasks, sampled and greedily; without such tasks only see that an engine starts on it."""
        n, passing = len(self.heldout), self.config.selection.min_reward
        if not n:
            if self.steps.finished(iteration, _serve_step(version), _serve_inputs(version)) is None:
                await self._serve(iteration, version)
            return None
        attempts = self.config.evaluation_attempts
        once = [(task, 0) for task in self.heldout]
        often = [(task, k) for task in self.heldout for k in range(attempts)]
        general = [(task, 0) for task in self.regression]
        name = f"evaluate-{version.name}"
        inputs = {
            "version": version.name, "tasks": _digest(self.heldout), "max_tokens": self.config.max_tokens, "passing": passing,
            "seed": self.config.seed, "attempts": attempts, "regression": _digest(self.regression),
        }  # fmt: skip
        done = self.steps.finished(iteration, name, inputs)
        if done is not None:
            self.steps.count(iteration, _serve_step(version))
            self.calls.update(done["proxy"])
            self.tokens.update(done["tokens"])
            return Evaluation.model_validate(done["evaluation"])
        await self._serve(iteration, version)
        planned = len(often) + len(once) + len(general)
        async with self.steps.open(iteration, name, f"evaluate {version.name}", inputs, total=planned) as step:
            kind = version.manifest.arm or "evaluate"  # the rollouts of two versions of one iteration are not the same
            batches = [_Batch(f"{kind}-t{SAMPLED:g}", iteration, Mode.VAL, SAMPLED, often)]
            batches += [_Batch(f"{kind}-t{GREEDY:g}", iteration, Mode.VAL, GREEDY, once)]
            batches += [_Batch(f"{kind}-regression", iteration, Mode.VAL, GREEDY, general)]
            ended = await self._run(version, step, batches)
            captured = await self._captured(ended, step)
            tokens = count_tokens(captured[0])
            self.tokens += tokens
            first, second = len(often), len(often) + n
            evaluation = Evaluation(
                version=version.name,
                arm=version.manifest.arm,
                sampled=measure(ended[:first], SAMPLED, passing, attempts, *captured),
                greedy=measure(ended[first:second], GREEDY, passing, 1, *captured),
                regression=measure(ended[second:], GREEDY, passing, 1, *captured) if general else None,
            )
            step.outputs |= evaluation.as_summary() | {
                "evaluation": evaluation.model_dump(mode="json"),
                "tokens": tokens,
                "rollouts": [end.rollout.id for end in ended],
            }
            step.view.update(note=f"T=1 {evaluation.sampled}, T=0 {evaluation.greedy}")
            self.parts.run.metric(iteration=iteration, step="evaluate", **evaluation.as_summary())
        return evaluation

    async def promote(self, iteration: int, candidate: Version, before: Evaluation | None, after: Evaluation | None) -> Verdict:
        """Make the candidate the champion if the gate says so; the registry keeps what it said, whatever that is."""
        registry = self.parts.registry
        inputs = {"candidate": candidate.name, "gate": self.config.gate.model_dump(mode="json")}
        done = self.steps.finished(iteration, "promote", inputs)
        if done is not None:
            return Verdict.model_validate(done)
        async with self.steps.open(iteration, "promote", f"promote {candidate.name}", inputs) as step:
            gate = self.config.gate
            if (before is None or after is None) and (gate != Gate() or self.regression):
                verdict = judge(None, Outcomes(candidate.name, {}, planned=0), gate)  # something was asked, and nothing measured
            elif before is None or after is None:
                reason = f"{candidate.name} is verified; there are no held-out tasks to judge it by"
                verdict = Verdict(decision=Decision.PROMOTE, champion=None, candidate=candidate.name, reason=reason, stages=())
            else:
                verdict = judge_versions(before, after, gate)
            step.outputs = verdict.model_dump(mode="json")
            await self.driver.check()
            registry.judge(candidate.name, verdict.champion, verdict.decision, verdict.reason, step.outputs)
            if verdict.promote:
                registry.promote(candidate.name, verdict.reason)
            step.view.update(note=verdict.headline)
        return verdict

    # -- serving, and rollouts on what is served ---------------------------------------------------------------------
    async def _serve(self, iteration: int, version: Version) -> None:
        """Put the version behind the proxy, unless it is there already."""
        if self.serving.version == version.name:
            return
        async with self.steps.open(iteration, _serve_step(version), f"serve {version.name}", _serve_inputs(version)) as step:
            await self.serving.start(version)
            step.view.update(note="ready")

    async def _run(self, version: Version, step: Step, work: Sequence[_Batch], near_end: Callable[[], None] | None = None) -> list[Ended]:
        """Run the rollouts with the served version; in order. An engine that dies is started again, and what is not final goes on."""
        store, board = self.parts.store, self.parts.board
        before = Counter(self.parts.proxy.counters)
        restarts = 0
        while True:
            try:
                if self.serving.version is None:  # it died
                    await self.serving.start(version)
                rollouts = [rollout for batch in work for rollout in await self._rollouts(batch)]
                ended = await self.serving.while_alive(run_rollouts(store, rollouts, self._patience, board, step.view, near_end))
            except EngineDied as died:
                if restarts == MAX_RESTARTS:
                    raise
                restarts += 1
                board.say(f"  {died.message}: starting it again ({restarts} of {MAX_RESTARTS})")
                continue
            calls = Counter(self.parts.proxy.counters) - before
            self.calls += calls
            step.outputs |= {"proxy": calls, "engine_restarts": restarts}
            return ended

    async def _rollouts(self, batch: _Batch) -> list[NewRollout]:
        """The same keys each time, so that nothing is run twice; the resources are those of the engine that serves now."""
        run_id = self.parts.run.id
        resources = await self.serving.resources(batch.temperature)
        return [
            NewRollout(
                input=task.input,
                mode=batch.mode,
                run_id=run_id,
                iteration=batch.iteration,
                resources_id=resources,
                config=self.config.rollout,
                group=task.id,
                episode=Episode(episode_spec_id=task.id, seed=self.config.seed),
                metadata={"step": batch.name, "k": k},
                idempotency_key=f"{run_id}/{batch.iteration}/{batch.name}/{task.id}/{k}",
            )
            for task, k in batch.work
        ]


def _serve_step(version: Version) -> str:
    return f"serve-{version.name}"


def _serve_inputs(version: Version) -> dict[str, Any]:
    return {"version": version.name}


def _digest(tasks: Sequence[LoopTask]) -> dict[str, Any]:
    return {"n": len(tasks), "sha256": hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()}
