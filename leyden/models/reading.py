"""How a model directory reads a request: its vocabulary, its chat template, its tokenizer. No model is loaded, nor Transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from leyden.errors import MissingExtra, UsageError
from leyden.models.template import Template, read_template, special_tokens


def vocabulary_size(model_dir: Path) -> int | None:
    """How many token ids the model has embeddings for; None where its config does not say."""
    path = model_dir / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


class Reader:
    """Renders and tokenises as engines do that serve the directory as it is."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir

    @cached_property
    def source(self) -> str | None:
        """The chat template; None where there is none, or no tokenizer file to read its text with."""
        return read_template(self.model_dir) if (self.model_dir / "tokenizer.json").is_file() else None

    def render(self, messages: Sequence[dict[str, Any]], tools: Any = None, **more: Any) -> str:
        """Raises ``UsageError`` where the template refuses the messages, ``MissingExtra`` without jinja2."""
        return self._template.render(messages, tools, **more)

    def ids(self, text: str) -> list[int]:
        """Raises ``UsageError`` for a damaged tokenizer, ``MissingExtra`` without tokenizers."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def text(self, ids: Sequence[int]) -> str:
        """With its special tokens."""
        found: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return found

    @cached_property
    def _template(self) -> Template:
        return Template(self.source or "", special_tokens(self.model_dir))

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra("tokenizers", "train") from None
        path = self.model_dir / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no type of its own
            raise UsageError(f"{path} is no tokenizer: {error}", "take the one of the model's publisher") from error
