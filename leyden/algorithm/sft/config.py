"""How an adapter is trained. The defaults are the recipe's; the demo's preset is for a small model and few steps."""

from __future__ import annotations

from math import ceil
from typing import Literal

from pydantic import Field

from leyden.errors import UsageError
from leyden.types import Record

ROWS_TO_SEE = 480  # the recipe's 60 steps of 8 rows
MAX_EPOCHS = 3  # the recipe's fixed step count gave 5 to 7 passes over a small dataset, which overfits

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TrainConfig(Record):
    """LoRA (arxiv.org/abs/2106.09685) and AdamW with a linear decay.

    A step is ``batch_size * accumulation`` rows, its loss the mean over all labelled tokens in them.
    """

    backend: Literal["auto", "trl", "unsloth"] = "auto"  # auto: unsloth on CUDA where the training's interpreter has it, else trl
    python: str | None = None  # the training's interpreter; None: the one that runs the loop
    r: int = Field(32, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: tuple[str, ...] = PROJECTIONS
    modules_to_save: tuple[str, ...] = ()  # trained whole, not by an adapter: "embed_tokens", "lm_head" after new tokens
    lr: float = Field(2e-4, gt=0)
    warmup_steps: int = Field(5, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    optimizer: str | None = None  # a name TrainingArguments knows; None: adamw_8bit on CUDA (with bitsandbytes), else adamw_torch
    batch_size: int = Field(2, ge=1)
    accumulation: int = Field(4, ge=1)
    epochs: float | None = Field(None, gt=0)  # None: see ``passes``
    max_steps: int | None = Field(None, ge=1)  # exactly so many, whatever the epochs
    max_length: int | None = Field(None, ge=2)  # tokens; a longer row is refused, never cut. None: the longest row
    load_in_4bit: bool | None = None  # CUDA only, to save memory while training; the merge never uses it. None: as the recipe, with unsloth
    share_prefix: bool = True  # compute the prompt that the rows of a batch share once (backend trl)
    seed: int = 3407

    @classmethod
    def preset(cls, name: str) -> TrainConfig:
        """``"recipe"`` or ``"demo"``. Raises ``UsageError`` for another name."""
        if name not in PRESETS:
            raise UsageError(f"no training preset {name!r}", f"choose one of {', '.join(PRESETS)}")
        return PRESETS[name]

    def passes(self, rows: int) -> float:
        """Epochs: as many whole passes as it takes to see about ``ROWS_TO_SEE`` rows, at least 1 and at most ``MAX_EPOCHS``."""
        return self.epochs or float(min(MAX_EPOCHS, max(1, round(ROWS_TO_SEE / rows))))

    def steps(self, rows: int) -> int:
        """Optimizer steps over so many rows, as the training child will do them."""
        return self.max_steps or ceil(self.passes(rows) * ceil(rows / (self.batch_size * self.accumulation)))

    @property
    def less_memory(self) -> str:
        """What to change where a training runs out of memory."""
        smaller = f"train.batch_size {max(1, self.batch_size // 2)} with train.accumulation {self.accumulation * 2}"
        rows = "shorter rows (rows.max_tokens, train.max_length)"
        return f"train with less memory: {smaller}, or {rows}" if self.batch_size > 1 else f"train with less memory: {rows}"


# About five times the recipe's update a step: a 135M model must move in a dozen steps.
DEMO = TrainConfig(r=16, alpha=32, lr=5e-4, warmup_steps=0, batch_size=8, accumulation=1, epochs=1)
PRESETS = {"recipe": TrainConfig(), "demo": DEMO}
