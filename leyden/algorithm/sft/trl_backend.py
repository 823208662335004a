"""Train a LoRA adapter with TRL and PEFT, and merge it. Runs in the training child only: it imports torch."""

from __future__ import annotations

import gc
import importlib.util
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

from leyden.algorithm.rows import IGNORED, Row
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.job import TrainJob, TrainProgress, TrainResult
from leyden.algorithm.sft.packing import Collator, can_share_prefix, packed_length
from leyden.errors import LeydenError, UsageError
from leyden.models.device import compute_dtype, pick_device
from leyden.models.files import relative_files

MERGED_DTYPE = torch.bfloat16

# What makes the same text into the same ids, taken from the parent byte for byte: a tokenizer saved again may come out different.
COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


def train(job: TrainJob, rows: Sequence[Row], report: Callable[[TrainProgress], None]) -> TrainResult:
    """Train on ``rows`` and fill ``job.output_dir`` with the adapter and the merged checkpoint.

    Raises ``UsageError`` for a job that cannot be done here, ``LeydenError`` when the loss stops being a number.
    """
    started = time.monotonic()
    config, device = job.config, pick_device()
    dtype = compute_dtype(device)
    set_seed(config.seed)
    model = attach_adapter(load_base(job, device, dtype), job)
    share = config.share_prefix and can_share_prefix(model.config)
    tokenizer = AutoTokenizer.from_pretrained(job.parent_dir)
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    columns = [{"input_ids": row.input_ids, "labels": row.labels} for row in rows]
    batch_size, accumulation = micro_batches(columns, config, share)
    monitor = Monitor(report)
    with tempfile.TemporaryDirectory(prefix=".trainer.", dir=job.output_dir) as scratch:
        trainer = Trainer(
            model=model,
            args=arguments(config, len(rows), batch_size, accumulation, device, dtype, scratch),
            data_collator=Collator(pad_id, share),
            train_dataset=Dataset.from_list(columns),
            processing_class=tokenizer,
            callbacks=[monitor],
            on_loss=monitor.count,
        )
        trainer.train()
    save_adapter(model, job)
    steps, epochs = trainer.state.global_step, float(trainer.state.epoch or 0)
    del trainer, model
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
        device=device,
        dtype=str(dtype).removeprefix("torch."),
        shared_prefix=share,
        files={name: (job.output_dir / name).stat().st_size for name in relative_files(job.output_dir)},
    )


def load_base(job: TrainJob, device: str, dtype: torch.dtype) -> PreTrainedModel:
    options: dict[str, Any] = {"dtype": dtype, "attn_implementation": "sdpa"}
    if job.config.load_in_4bit:
        if device != "cuda":
            raise UsageError("load_in_4bit needs a CUDA GPU", "leave load_in_4bit out of the training config")
        if importlib.util.find_spec("bitsandbytes") is None:
            raise UsageError("load_in_4bit needs bitsandbytes", "pip install bitsandbytes, or leave load_in_4bit out")
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
        )
    model = AutoModelForCausalLM.from_pretrained(job.base_dir, **options)
    return prepare_model_for_kbit_training(model) if job.config.load_in_4bit else model


def attach_adapter(model: PreTrainedModel, job: TrainJob) -> PeftModel:
    """The parent's adapter, to be trained on, or a fresh one whose product is zero."""
    config = job.config
    if job.parent_adapter_dir is None:
        lora = LoraConfig(
            r=config.r, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=list(config.target_modules),
            bias="none", task_type="CAUSAL_LM",
        )  # fmt: skip
        return get_peft_model(model, lora)
    adapted = PeftModel.from_pretrained(model, job.parent_adapter_dir, is_trainable=True)
    found: Any = adapted.peft_config["default"]
    if (found.r, found.lora_alpha) != (config.r, config.alpha):
        raise UsageError(
            f"the parent's adapter has r={found.r}, alpha={found.lora_alpha}; "
            f"the training config asks for r={config.r}, alpha={config.alpha}",
            "an adapter is trained on with the shape it has: keep r and alpha through a run",
        )
    return adapted


def micro_batches(rows: Sequence[Mapping[str, list[int]]], config: TrainConfig, share: bool) -> tuple[int, int]:
    """(rows a forward pass, passes a step). The product is the config's.

    With a shared prefix all rows of a step go through together where that takes no more tokens than ``batch_size`` padded rows.
    """
    step = config.batch_size * config.accumulation
    longest = sorted(rows, key=lambda row: len(row["input_ids"]), reverse=True)[:step]
    room = config.batch_size * len(longest[0]["input_ids"])
    if share and len(longest) > 1 and packed_length(longest) <= room:
        return step, 1
    return config.batch_size, config.accumulation


def arguments(
    config: TrainConfig, rows: int, batch_size: int, accumulation: int, device: str, dtype: torch.dtype, scratch: str
) -> SFTConfig:
    eight_bit = device == "cuda" and importlib.util.find_spec("bitsandbytes") is not None
    return SFTConfig(
        output_dir=scratch,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
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
        gradient_checkpointing=device == "cuda",  # trades time for memory, of which a CPU has more
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


class Trainer(SFTTrainer):
    """TRL's trainer with a loss for every device: TRL 1.15 has its own in a Triton kernel, which runs on CUDA only.

    The same number: negative log-likelihood summed over labelled tokens, over all labelled tokens of the step. The head
    projects only the positions that predict a labelled token. ``on_loss`` is told how many that were.
    """

    def __init__(self, *, on_loss: Callable[[int], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._on_loss = on_loss

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        targets = inputs.pop("labels")[:, 1:]
        predicting = (targets != IGNORED).any(dim=0).nonzero().squeeze(1)
        logits = model(**inputs, use_cache=False, logits_to_keep=predicting).logits
        targets = targets[:, predicting]
        labelled = (targets != IGNORED).sum()
        self._on_loss(int(labelled))
        total = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return total / (labelled if num_items_in_batch is None else num_items_in_batch)


class Monitor(TrainerCallback):
    """Counts what the loss saw, reports every step, and stops a training that has diverged."""

    def __init__(self, report: Callable[[TrainProgress], None]) -> None:
        self.first_pass_tokens = 0
        self.losses: list[float] = []
        self._tokens = 0
        self._first_pass = True
        self._report = report

    def count(self, labelled: int) -> None:
        self._tokens += labelled
        if self._first_pass:
            self.first_pass_tokens += labelled

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started = time.monotonic()
        self._report(TrainProgress(step=0, steps=state.max_steps))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._first_pass = False

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if logs is None or "loss" not in logs:  # the summary at the end
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise LeydenError(f"the training diverged: the loss is {loss} at step {state.global_step}", "train with a lower lr")
        self.losses.append(loss)
        elapsed = time.monotonic() - self._started
        left = elapsed / state.global_step * (state.max_steps - state.global_step)
        self._report(TrainProgress(step=state.global_step, steps=state.max_steps, loss=loss, tokens=self._tokens, seconds_left=left))


def save_adapter(model: PeftModel, job: TrainJob) -> None:
    # By name: PEFT would write this machine's path to the base, which is wrong as soon as anything moves.
    model.peft_config["default"].base_model_name_or_path = job.base_dir.name
    model.save_pretrained(str(job.output_dir / "adapter"), save_embedding_layers=False)
    (job.output_dir / "adapter" / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def merge(base_dir: Path, adapter_dir: Path, output_dir: Path) -> None:
    """Base + adapter in float32 on the CPU, cast once. Never from a merged file: its rounding would pile up."""
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(base, adapter_dir).merge_and_unload()
    merged.to(MERGED_DTYPE).save_pretrained(output_dir)


def copy_parent_files(parent_dir: Path, output_dir: Path) -> None:
    for name in COPIED:
        if (parent_dir / name).is_file():
            shutil.copyfile(parent_dir / name, output_dir / name)
