"""Train a LoRA adapter with Unsloth: its kernels and its memory savings on CUDA, its own CPU path elsewhere. Runs in the child only.

What Unsloth would do on its own and we do not let it: cut rows (``max_length``), pack them (on the CPU it turns that off without a word),
render or tokenise anything, or merge: the merge is ours, in float32 from the unquantised base, whatever was loaded for training.
"""

from __future__ import annotations

# It patches Transformers, TRL and PEFT, so it comes before them.
import unsloth  # isort: skip
from collections.abc import Callable
from typing import Any

import torch
from trl import SFTTrainer

from leyden.algorithm.rows import IGNORED
from leyden.algorithm.sft.fit import Columns, Setup
from leyden.algorithm.sft.job import TrainJob
from leyden.algorithm.sft.lora import load_adapter, lora_options
from leyden.errors import UsageError


def prepare(job: TrainJob, columns: Columns, device: str, dtype: torch.dtype) -> Setup:
    """Raises ``UsageError`` for a job that cannot be done here."""
    config = job.config
    if config.load_in_4bit and device != "cuda":
        raise UsageError("load_in_4bit needs a CUDA GPU", "leave load_in_4bit out of the training config")
    longest = max(len(row["input_ids"]) for row in columns)
    checkpointing = "unsloth" if device == "cuda" else False  # trades time for memory, of which a CPU has more
    model, _ = unsloth.FastLanguageModel.from_pretrained(
        str(job.base_dir),
        max_seq_length=longest,
        dtype=dtype,
        load_in_4bit=device == "cuda" if config.load_in_4bit is None else config.load_in_4bit,
        use_gradient_checkpointing=checkpointing,
    )
    adapted = unsloth.FastLanguageModel.get_peft_model(
        model,
        **lora_options(config, bool(model.config.tie_word_embeddings)),
        use_gradient_checkpointing=checkpointing,
        random_state=config.seed,
        max_seq_length=longest,
    )
    if job.parent_adapter_dir is not None:
        load_adapter(adapted, job.parent_adapter_dir)
    return Setup(
        model=adapted,
        trainer=Trainer,
        batch_size=config.batch_size,
        accumulation=config.accumulation,
        share_prefix=False,  # its attention takes no mask of ours
        gradient_checkpointing=bool(checkpointing),
    )


class Trainer(SFTTrainer):
    """Unsloth's trainer, with the labelled tokens counted where the loss is taken. ``on_loss`` is told how many there were."""

    def __init__(self, *, on_loss: Callable[[int], None], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._on_loss = on_loss

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._on_loss(int((inputs["labels"][:, 1:] != IGNORED).sum()))
        return super().compute_loss(model, inputs, *args, **kwargs)
