"""Which tokens end a turn, read from a model directory without loading anything heavy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leyden.errors import UsageError


def eos_token_ids(model_dir: Path) -> frozenset[int]:
    """What its configs and its tokenizer name; what engines stop on is among them. Raises ``UsageError`` where nothing is named."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read(model_dir / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    token = _read(model_dir / "tokenizer_config.json").get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    added = _read(model_dir / "tokenizer.json").get("added_tokens", [])
    ids.update(entry["id"] for entry in added if entry.get("content") == content)
    if not ids:
        raise UsageError(f"{model_dir} does not say which token ends a turn", "set eos_token_id in its generation_config.json")
    return frozenset(ids)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
