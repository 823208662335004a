"""From a trained adapter to the directory that becomes a version: the same for every backend, and never from quantised weights."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from leyden.errors import UsageError

MERGED_DTYPE = torch.bfloat16

# What makes the same text into the same ids, taken from the parent byte for byte: a tokenizer saved again may come out different.
COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


def save_adapter(model: PeftModel, directory: Path, base_name: str) -> None:
    """PEFT's format. It names the base by ``base_name``: this machine's path to it would be wrong as soon as anything moves."""
    model.peft_config["default"].base_model_name_or_path = base_name
    model.save_pretrained(str(directory), save_embedding_layers=False)  # those in ``modules_to_save`` are saved all the same
    (directory / "README.md").unlink(missing_ok=True)  # PEFT's empty model card


def merge(base_dir: Path, adapter_dir: Path, output_dir: Path) -> None:
    """Base + adapter in float32 on the CPU, cast once. Raises ``UsageError`` for a quantised base: its rounding would stay for good."""
    if "quantization_config" in json.loads((base_dir / "config.json").read_text()):
        raise UsageError(f"{base_dir} is quantised, and a merge would round twice", "use the model's 16-bit weights")
    base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    merged: Any = PeftModel.from_pretrained(base, adapter_dir).merge_and_unload()
    merged.tie_weights()  # a module trained whole was a copy: where the model ties, input and output are one matrix again
    merged.to(MERGED_DTYPE).save_pretrained(output_dir)
    del base, merged
    gc.collect()


def copy_parent_files(parent_dir: Path, output_dir: Path) -> None:
    for name in COPIED:
        if (parent_dir / name).is_file():
            shutil.copyfile(parent_dir / name, output_dir / name)
