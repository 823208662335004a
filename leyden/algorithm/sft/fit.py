"""One training, whatever the backend: prepare, train, save the adapter, merge, report. Runs in the training child only."""

from __future__ import annotations

import gc
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoTokenizer, set_seed
from trl import SFTConfig, SFTTrainer

from leyden.algorithm.rows import Row
from leyden.algorithm.sft.checkpoint import copy_parent_files, merge, save_adapter
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.monitor import Monitor
from leyden.algorithm.sft.packing import Collator
from leyden.algorithm.sft.probe import installed
from leyden.files import disk_errors, relative_files
from leyden.models.device import compute_dtype, pick_device

Columns = list[dict[str, list[int]]]  # of each row: ``input_ids`` and ``labels``


@dataclass(frozen=True)
class Setup:
    """What a backend brings: a model with its adapter, and how rows go through it.

    ``trainer`` takes what ``SFTTrainer`` takes and ``on_loss``, which it calls with the number of labelled tokens each loss was taken
    over. ``batch_size`` rows go through at once, ``accumulation`` times a step.
    """

    model: PeftModel
    trainer: Callable[..., SFTTrainer]
    batch_size: int
    accumulation: int
    share_prefix: bool
    gradient_checkpointing: bool


Prepare = Callable[[TrainJob, Columns, str, torch.dtype], Setup]  # the last two: device and dtype to compute in


def fit(job: TrainJob, rows: Sequence[Row], prepare: Prepare, report: Callable[[TrainProgress], None]) -> TrainResult:
    """Train on ``rows`` and fill ``job.output_dir`` with the adapter and the merged checkpoint.

    Raises ``UsageError`` for a job that cannot be done here, ``LeydenError`` when the loss stops being a number, ``DiskError``.
    """
    started = time.monotonic()
    config, device = job.config, pick_device()
    dtype = compute_dtype(device)
    set_seed(config.seed)
    columns: Columns = [{"input_ids": row.input_ids, "labels": row.labels} for row in rows]
    setup = prepare(job, columns, device, dtype)
    tokenizer = AutoTokenizer.from_pretrained(job.parent_dir)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    monitor = Monitor(report)
    with tempfile.TemporaryDirectory(prefix=".trainer.", dir=job.output_dir) as scratch:
        trainer = setup.trainer(
            model=setup.model,
            args=arguments(config, len(rows), setup, device, dtype, scratch),
            data_collator=Collator(pad_id, setup.share_prefix),
            train_dataset=Dataset.from_list(columns),
            processing_class=tokenizer,
            callbacks=[monitor],
            on_loss=monitor.count,
        )
        trainer.train()
    shared, steps, epochs = setup.share_prefix, trainer.state.global_step, float(trainer.state.epoch or 0)
    with disk_errors(job.output_dir, needs=job.output_size):
        save_adapter(setup.model, job.output_dir / "adapter", job.base_dir.name)
        del trainer, setup
        gc.collect()
        merge(job.base_dir, job.output_dir / "adapter", job.output_dir)
        copy_parent_files(job.parent_dir, job.output_dir)
    return TrainResult(
        supervised_tokens=monitor.first_pass_tokens,
        rows=len(rows),
        steps=steps,
        epochs=epochs,
        losses=monitor.losses,
        seconds=time.monotonic() - started,
        backend=job.backend or "trl",
        software=installed(),
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        shared_prefix=shared,
        files={name: (job.output_dir / name).stat().st_size for name in relative_files(job.output_dir)},
    )


def arguments(config: TrainConfig, rows: int, setup: Setup, device: str, dtype: torch.dtype, scratch: str) -> SFTConfig:
    eight_bit = device == "cuda" and importlib.util.find_spec("bitsandbytes") is not None
    return SFTConfig(
        output_dir=scratch,
        per_device_train_batch_size=setup.batch_size,
        gradient_accumulation_steps=setup.accumulation,
        num_train_epochs=config.passes(rows),
        max_steps=config.max_steps or -1,
        learning_rate=config.lr,
        lr_scheduler_type="linear",
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        optim=config.optimizer or ("adamw_8bit" if eight_bit else "adamw_torch"),
        seed=config.seed,
        bf16=dtype == torch.bfloat16,
        fp16=False,
        use_cpu=device == "cpu",
        gradient_checkpointing=setup.gradient_checkpointing,
        dataloader_pin_memory=device == "cuda",
        dataset_kwargs={"skip_prepare_dataset": True},  # the rows are what was sampled: never tokenised, templated or cut again
        max_length=None,
        packing=False,
        save_strategy="no",
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,  # it would report a NaN loss as the average of the good ones
        report_to="none",
        disable_tqdm=True,
    )
