"""Train a LoRA adapter with TRL and PEFT on any device. Runs in the training child only: it imports torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from trl import SFTTrainer

from leyden.algorithm.rows import IGNORED
from leyden.algorithm.sft.config import TrainConfig
from leyden.algorithm.sft.fit import Columns, Setup
from leyden.algorithm.sft.job import TrainJob
from leyden.algorithm.sft.lora import load_adapter, lora_options
from leyden.algorithm.sft.packing import can_share_prefix, packed_length
from leyden.errors import UsageError


def prepare(job: TrainJob, columns: Columns, device: str, dtype: torch.dtype) -> Setup:
    """Raises ``UsageError`` for a job that cannot be done here."""
    model = attach_adapter(load_base(job, device, dtype), job)
    share = job.config.share_prefix and can_share_prefix(model.config)
    batch_size, accumulation = micro_batches(columns, job.config, share)
    return Setup(
        model=model,
        trainer=Trainer,
        batch_size=batch_size,
        accumulation=accumulation,
        share_prefix=share,
        gradient_checkpointing=device == "cuda",  # trades time for memory, of which a CPU has more
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
    options = lora_options(job.config, bool(model.config.tie_word_embeddings))
    adapted = get_peft_model(model, LoraConfig(**options, task_type="CAUSAL_LM"))
    if job.parent_adapter_dir is not None:
        load_adapter(adapted, job.parent_adapter_dir)
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
        total = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / (labelled if num_items_in_batch is None else num_items_in_batch)
