"""The backend that runs everywhere."""

from __future__ import annotations

import pytest

pytest.importorskip("trl")

from backend_suite import CONFIG, BackendSuite, make_job, make_row

from leyden.algorithm.rows import IGNORED
from leyden.algorithm.sft import child as training_child
from leyden.algorithm.sft.train import check_result


class TestTRL(BackendSuite):
    options = {"backend": "trl"}  # noqa: RUF012


def test_sharing_the_prefix_and_accumulating_train_the_same_adapter(tiny_model, tmp_path):
    from dataclasses import replace

    from safetensors.torch import load_file

    rows = [make_row(number, length=70 + 3 * number) for number in range(8)]  # unequal lengths, so that wrong weighting would show
    rows = [replace(row, labels=[IGNORED] * (60 - 2 * i) + row.input_ids[60 - 2 * i :]) for i, row in enumerate(rows)]
    adapters = []
    for name, changes in {
        "shared": {"share_prefix": True, "batch_size": 4, "accumulation": 2},
        "padded": {"share_prefix": False, "batch_size": 4, "accumulation": 2},
        "at-once": {"share_prefix": False, "batch_size": 8, "accumulation": 1},
    }.items():
        job = make_job(tiny_model, tmp_path / name, rows, config=CONFIG.model_copy(update={**changes, "lr": 1e-3}))
        job.output_dir.mkdir()
        training_child.run(job, lambda event: None)
        assert check_result(job).shared_prefix == changes["share_prefix"]
        adapters.append(load_file(job.output_dir / "adapter" / "adapter_model.safetensors"))
    for other in adapters[1:]:
        assert max(float((adapters[0][name] - other[name]).abs().max()) for name in other) < 1e-4
