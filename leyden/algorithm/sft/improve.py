"""Train and verify: from selected rows to a version in the registry, whenever the driver may die in between.

The training writes into a draft; its manifest names it, so that a later driver verifies what was trained instead of training again.
A version is committed by one rename, and the registry knows which run and iteration made it: none is lost, none is made twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from leyden.algorithm.dataset import dataset_name, supervised_tokens, write_rows
from leyden.algorithm.rows import Row
from leyden.algorithm.sft.job import TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.settings import SFTConfig
from leyden.algorithm.sft.steps import Steps
from leyden.algorithm.sft.train import check_result, train
from leyden.errors import Unavailable
from leyden.models.draft import Draft
from leyden.models.verifier import verify_in_child
from leyden.models.version import Version

if TYPE_CHECKING:
    from leyden.algorithm.sft.phases import Parts


class Improvement:
    """One iteration's candidate, from the rows it learns to the version it becomes.

    ``arm``: None for the candidate itself; else the name of what is made beside it, to compare with.
    """

    def __init__(
        self,
        parts: Parts,
        config: SFTConfig,
        steps: Steps,
        iteration: int,
        parent: Version,
        rows: Sequence[Row],
        arm: str | None = None,
    ) -> None:
        self.parts, self.config, self.steps = parts, config, steps
        self.iteration, self.parent, self.arm = iteration, parent, arm
        self._suffix = f"-{arm}" if arm else ""
        self._dataset = parts.run.path / f"iteration_{iteration}" / dataset_name(arm)
        self._sha256 = write_rows(self._dataset, rows)
        self._tokens = supervised_tokens(rows)
        self._inputs = self._job(Path()).model_dump(
            mode="json", exclude={"output_dir", "dataset_path", "base_dir", "parent_dir", "parent_adapter_dir"}
        ) | {"parent": parent.name, "base": parts.registry.base_of(parent).name}  # not paths: a run may be moved
        done = steps.finished(iteration, f"train{self._suffix}", self._inputs)
        self._committed = parts.registry.find(parts.run.id, iteration, arm)
        self._draft = self._left_behind(done["draft"]) if done and not self._committed else None

    @property
    def trained(self) -> bool:
        """Whether an earlier driver has trained it, and what came out is intact."""
        return self._committed is not None or self._draft is not None

    async def make(self) -> tuple[Version, TrainResult]:
        """Do what is still to be done. Training needs the machine for itself.

        Raises ``Unavailable`` when a child fails or what was saved is not what was trained; no version appears then.
        """
        if self._committed is None and self._draft is None:
            self._draft = await self._train(self.parts.registry.new_draft(self.parent))
        version = await self._verify()
        return version, check_result(self._job(version.path))

    def _left_behind(self, name: str) -> Draft | None:
        """The draft of a finished training, unless it has been damaged or removed since."""
        draft = self.parts.registry.reopen_draft(name, self.parent)
        if draft is None:
            return None
        try:
            check_result(self._job(draft.path))
        except Unavailable as error:
            self.parts.board.say(f"  training again: {error.message}")
            draft.discard()
            return None
        return draft

    async def _train(self, draft: Draft) -> Draft:
        title = f"train {draft.name}{f' ({self.arm})' if self.arm else ''}"
        try:
            async with self.steps.open(self.iteration, f"train{self._suffix}", title, self._inputs) as step:

                def show(progress: TrainProgress) -> None:
                    loss = f"loss {progress.loss:.3f}" if progress.loss is not None else "starting"
                    step.view.update(done=progress.step, total=progress.steps, note=loss, left=progress.seconds_left)
                    self.parts.run.metric(iteration=self.iteration, step="train", train_step=progress.step, loss=progress.loss)

                result = await train(
                    self._job(draft.path),
                    on_progress=show,
                    log_path=self.parts.run.log(f"train-{draft.name}"),
                    marker=self.parts.marker,
                    timeout=self.config.train_timeout,
                    ahead=self.parts.trainer,
                )
                step.outputs = {"draft": draft.path.name, **result.model_dump(mode="json", exclude={"files"})}
                loss = f"mean loss {fmean(result.losses):.3f} over {result.steps} steps"
                step.view.update(note=f"{loss}, {result.supervised_tokens} tokens learnt")
        except BaseException:
            draft.discard()
            raise
        return draft

    async def _verify(self) -> Version:
        made = self._committed or self._draft
        assert made is not None
        name, inputs = f"verify{self._suffix}", {"version": made.name, "dataset_sha256": self._sha256}
        if self._committed and self.steps.finished(self.iteration, name, inputs) is not None:
            return self._committed
        async with self.steps.open(self.iteration, name, f"verify {made.name}", inputs) as step:
            version = self._committed or await self._check_and_commit()
            step.outputs = {"version": version.name, "checks": version.manifest.metrics["checks"]}
            step.view.update(note=f"{len(step.outputs['checks'])} checks passed")
        return version

    async def _check_and_commit(self) -> Version:
        draft, parts = self._draft, self.parts
        assert draft is not None
        job, log_path = self._job(draft.path), parts.run.log(f"verify-{draft.name}")
        await parts.make_engine.prepare(draft.name)  # meanwhile: both load libraries for seconds
        report = await verify_in_child(
            draft.path, job.base_dir, draft.path / "adapter", parent_dir=job.parent_dir, marker=parts.marker, log_path=log_path
        )
        if not report.ok:
            draft.discard()
            wrong = report.failures[0]
            raise Unavailable(f"{draft.name} is not what was trained: {wrong.name}: {wrong.detail}", f"it was discarded; see {log_path}")
        await self.steps.driver.check()
        return draft.commit(
            dataset_sha256=self._sha256,
            training=job.config.model_dump(mode="json"),
            metrics=check_result(job).model_dump(mode="json", exclude={"files"}) | {"checks": report.model_dump(mode="json")["checks"]},
            run_id=parts.run.id,
            iteration=self.iteration,
            arm=self.arm,
        )

    def _job(self, output_dir: Path) -> TrainJob:
        parent, registry = self.parent, self.parts.registry
        return TrainJob(
            base_dir=registry.base_of(parent).path,
            parent_dir=parent.path,
            parent_adapter_dir=parent.adapter_dir,
            dataset_path=self._dataset,
            dataset_sha256=self._sha256,
            output_dir=output_dir,
            config=self.config.train,
            expected_supervised_tokens=self._tokens,
        )
