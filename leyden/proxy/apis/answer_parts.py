"""What engines call the same things by different names in."""

from __future__ import annotations

from typing import Any


def reasoning_of(message: dict[str, Any]) -> str | None:
    """Of a message or a delta: ``reasoning`` (vLLM since 0.12), ``reasoning_content`` (SGLang, DeepSeek, older vLLM)."""
    return message.get("reasoning_content") or message.get("reasoning")
