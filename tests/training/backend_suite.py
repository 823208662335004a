"""What every training backend must do, on a tiny model in a real child. A test file makes a class of it for each backend."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from leyden.algorithm.dataset import supervised_tokens, write_rows
from leyden.algorithm.rows import IGNORED, Row
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.train import train
from leyden.errors import Unavailable
from leyden.models.registry import Registry, Version
from leyden.models.verifier import verify
from leyden.process import new_marker

EOS = 2
CONFIG = TrainConfig.preset("demo").model_copy(update={"r": 4, "lr": 1e-2, "epochs": 2.0, "warmup_steps": 0, "backend": "trl"})


def make_row(number: int, length: int = 90, prefix: int = 48) -> Row:
    """Its last 20 tokens are labelled, the last of them the end of a turn."""
    shared, own = random.Random(0), random.Random(number + 1)
    ids = [shared.randrange(3, 400) for _ in range(prefix)] + [own.randrange(3, 400) for _ in range(length - prefix - 1)] + [EOS]
    answer = length - 20
    return Row(ids, [IGNORED] * answer + ids[answer:], 1.0, f"rollout-{number}", 1, f"task-{number}", (f"gen-{number}",), "version_0")


# The last row's only labels come after 1,080 tokens, where TRL and Unsloth cut rows unless they are told not to.
ROWS = [*(make_row(number) for number in range(11)), make_row(11, length=1100)]


def make_job(base: Path, output: Path, rows: list[Row] = ROWS, **changes) -> TrainJob:
    dataset = output.parent / f"{output.name}.arrow"
    return TrainJob(**{
        "base_dir": base, "parent_dir": base, "dataset_path": dataset, "dataset_sha256": write_rows(dataset, rows),
        "output_dir": output, "config": CONFIG, "expected_supervised_tokens": supervised_tokens(rows),
    } | changes)  # fmt: skip


def run_training(job: TrainJob, log_path: Path, on_progress=lambda progress: None, marker: str | None = None) -> TrainResult:
    return asyncio.run(train(job, on_progress=on_progress, log_path=log_path, marker=marker or new_marker(), timeout=240))


@dataclass(frozen=True)
class Line:
    """A registry in which version_1 was trained from version_0, and version_2 from version_1 with a rate of almost nothing."""

    registry: Registry
    result: TrainResult  # of version_1
    progress: list[TrainProgress]  # of version_1

    def __getitem__(self, number: int) -> Version:
        return self.registry.get(f"version_{number}")

    def failures(self, number: int) -> dict[str, str]:
        """Of the verifier: check → detail."""
        version = self[number]
        report = verify(version.path, self[0].path, version.adapter_dir, parent_dir=self.registry.get(version.manifest.parent).path)
        return {check.name: check.detail for check in report.failures}


class BackendSuite:
    options: ClassVar[dict] = {}  # of ``TrainConfig``: which backend, whose interpreter

    def train_from(self, registry: Registry, parent: Version, log_path: Path, on_progress=lambda progress: None, **changes):
        draft = registry.new_draft(parent)
        config = CONFIG.model_copy(update=self.options | changes)
        job = make_job(
            registry.base_of(parent).path, draft.path, parent_dir=parent.path, parent_adapter_dir=parent.adapter_dir, config=config,
            dataset_path=log_path.with_suffix(".arrow"), dataset_sha256=write_rows(log_path.with_suffix(".arrow"), ROWS),
        )  # fmt: skip
        result = run_training(job, log_path, on_progress)
        return draft.commit(dataset_sha256=job.dataset_sha256, metrics=result.model_dump(mode="json", exclude={"files"})), result

    @pytest.fixture(scope="class")
    def line(self, tiny_model, tmp_path_factory) -> Line:
        directory, progress = tmp_path_factory.mktemp("run"), []
        registry = Registry(directory / "models")
        base = registry.import_version(tiny_model)
        first, result = self.train_from(registry, base, directory / "first.log", progress.append)
        self.train_from(registry, first, directory / "second.log", lr=1e-9, max_steps=1)
        return Line(registry, result, progress)

    def test_every_sampled_token_is_trained_on_and_reported(self, line):
        result, progress = line.result, line.progress
        assert result.supervised_tokens == supervised_tokens(ROWS) == 12 * 20, "rows were cut, or labels lost"
        assert (result.rows, result.steps, result.epochs, len(result.losses)) == (12, 4, 2.0, 4)
        assert result.losses[-1] < result.losses[0]
        assert [p.step for p in progress] == [0, 1, 2, 3, 4]
        assert progress[-1] == TrainProgress(step=4, steps=4, loss=result.losses[-1], tokens=2 * 12 * 20, seconds_left=0.0)
        assert result.backend == self.options["backend"] and result.software["torch"] == line[1].manifest.metrics["software"]["torch"]

    def test_the_mean_over_all_labelled_tokens_of_a_step_is_what_is_minimised(self, line):
        """A fresh adapter changes nothing, so the first loss is the base's over the first step's rows: near ln(vocabulary) here."""
        assert 5.5 < line.result.losses[0] < 6.5

    def test_what_was_saved_is_the_base_and_the_adapter_and_not_the_parent(self, line):
        assert line.failures(1) == {}
        merge = line[1].manifest.weights
        assert merge.base == "version_0" and merge.adapter_sha256 == line[1].manifest.files["adapter/adapter_model.safetensors"]

    def test_the_tool_aware_chat_template_is_saved_byte_for_byte(self, line):
        for name in ("chat_template.jinja", "tokenizer.json", "generation_config.json"):
            assert (line[1].path / name).read_bytes() == (line[0].path / name).read_bytes()

    def test_tied_embeddings_stay_one_matrix(self, line):
        from safetensors.torch import load_file

        assert "lm_head.weight" not in load_file(line[1].path / "model.safetensors")
        assert json.loads((line[1].path / "config.json").read_text())["tie_word_embeddings"] is True

    def test_the_next_iteration_trains_the_adapter_on_and_merges_it_into_the_base(self, line):
        from safetensors.torch import load_file

        assert line.failures(2).keys() <= {"changed"}, "at a rate of almost nothing"
        before, after = (load_file(line[n].adapter_dir / "adapter_model.safetensors") for n in (1, 2))
        assert before.keys() == after.keys() and all((after[name] - before[name]).abs().max() < 1e-6 for name in before)
        assert line[2].manifest.lineage == ("version_0", "version_1") and line[2].manifest.weights.base == "version_0"
        settings = json.loads((line[2].adapter_dir / "adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == "version_0", "a path of this machine was saved"

    def test_a_module_trained_whole_is_trained_saved_merged_and_still_tied(self, line, tmp_path):
        from safetensors.torch import load_file

        base = line[0]
        registry = Registry(tmp_path / "models")
        version, _ = self.train_from(
            registry, registry.clone_from(line.registry, base), tmp_path / "train.log", modules_to_save=("embed_tokens",)
        )
        report = verify(version.path, base.path, version.adapter_dir, parent_dir=base.path)
        assert report.ok, report.failures
        before, after = (load_file(v.path / "model.safetensors") for v in (base, version))
        assert (before["model.embed_tokens.weight"] != after["model.embed_tokens.weight"]).any() and "lm_head.weight" not in after

    def test_an_adapter_is_not_trained_on_with_another_shape(self, line, tmp_path):
        with pytest.raises(Unavailable, match=r"adapter has r=4; .*asks for r=8") as failure:
            self.train_from(line.registry, line[1], tmp_path / "train.log", r=8)
        assert "keep r, alpha and the modules" in failure.value.hint
        assert len(line.registry.list()) == 3

    def test_shifted_labels_never_reach_the_optimizer(self, line, tmp_path, monkeypatch):
        monkeypatch.setattr("leyden.algorithm.dataset.check_rows", lambda rows: None)  # a writer that does not look
        shifted = [Row(**{**vars(row), "labels": [*row.labels[1:], IGNORED]}) for row in ROWS]
        job = make_job(line[0].path, tmp_path / "out", shifted, config=CONFIG.model_copy(update=self.options))
        with pytest.raises(Unavailable, match="are the labels shifted"):
            run_training(job, tmp_path / "train.log")
        assert list(job.output_dir.iterdir()) == []
