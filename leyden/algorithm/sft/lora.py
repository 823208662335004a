"""The shape of an adapter, and an earlier one trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leyden.algorithm.sft.config import TrainConfig
from leyden.errors import UsageError


def lora_options(config: TrainConfig, tied: bool) -> dict[str, Any]:
    """Arguments that PEFT's ``LoraConfig`` and Unsloth's ``get_peft_model`` both take. ``tied``: the model's input and output embedding
    are one matrix, and one that is trained whole must stay so."""
    modules = list(config.modules_to_save) or None
    options: dict[str, Any] = {
        "r": config.r, "lora_alpha": config.alpha, "lora_dropout": config.dropout, "target_modules": list(config.target_modules),
        "modules_to_save": modules, "bias": "none",
    }  # fmt: skip
    return options | ({"ensure_weight_tying": True} if modules and tied else {})


def check_shape(adapter_dir: Path, config: TrainConfig) -> None:
    """Raises ``UsageError`` for an adapter of another shape than the config asks for: it cannot be trained on."""
    found = json.loads((adapter_dir / "adapter_config.json").read_text())
    shape = {
        "r": (found["r"], config.r),
        "alpha": (found["lora_alpha"], config.alpha),
        "target_modules": (sorted(found["target_modules"]), sorted(config.target_modules)),
        "modules_to_save": (sorted(found.get("modules_to_save") or ()), sorted(config.modules_to_save)),
    }
    differing = [name for name, (has, asked) in shape.items() if has != asked]
    if differing:
        has, asked = (", ".join(f"{name}={shape[name][side]}" for name in differing) for side in (0, 1))
        raise UsageError(
            f"the parent's adapter has {has}; the training config asks for {asked}",
            "an adapter is trained on with the shape it has: keep r, alpha and the modules through a run",
        )


def load_adapter(model: Any, adapter_dir: Path) -> None:
    """Give the fresh adapter of a PEFT model the weights of a saved one. Raises ``UsageError`` where the two do not fit."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    result = set_peft_model_state_dict(model, load_file(adapter_dir / "adapter_model.safetensors"))
    missing = [name for name in result.missing_keys if "lora_" in name or "modules_to_save" in name]
    if missing or result.unexpected_keys:
        names = [*missing, *result.unexpected_keys]
        raise UsageError(f"the parent's adapter does not fit the model: {', '.join(names[:3])}", "was the base model exchanged?")
