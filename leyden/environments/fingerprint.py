"""Digests of what was asked (the environment) and of who answered (the policy), by component, so that a mismatch says what changed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leyden.errors import UsageError

logger = logging.getLogger(__name__)


class FingerprintError(ValueError):
    """A component cannot be written down so that equal means equal."""


class MismatchError(UsageError, ValueError):
    """Two results are not about the same environment."""

    code = "mismatch"


@dataclass(frozen=True)
class Fingerprint:
    """``digest`` over ``components`` (name → digest, None where one could not be taken). With any None the whole is None, and a None
    equals nothing, another None included."""

    digest: str | None
    components: Mapping[str, str | None] = field(default_factory=dict)

    def matches(self, other: Fingerprint) -> bool:
        return self.digest is not None and self.digest == other.digest

    def difference(self, other: Fingerprint) -> tuple[str, ...]:
        """The components that differ, or of which one side knows nothing; "version" if the two were taken by other rules. Empty exactly
        when they match."""
        if self.matches(other):
            return ()
        names = dict.fromkeys([*self.components, *other.components])
        differing = tuple(name for name in names if (mine := self.components.get(name)) is None or mine != other.components.get(name))
        return differing or ("version",)


def take(kind: str, components: Mapping[str, Callable[[], Any]]) -> Fingerprint:
    """The fingerprint over what the components give. One that raises is None, with a warning in the log; nothing is raised.

    ``kind`` stands before the digest and carries the version of these rules ("env1"), so that digests of other rules equal none of these.
    """
    digests = {name: _component(kind, name, get) for name, get in sorted(components.items())}
    whole = None if None in digests.values() else f"{kind}:{digest(digests)}"
    return Fingerprint(whole, digests)


def _component(kind: str, name: str, get: Callable[[], Any]) -> str | None:
    try:
        return digest(get())
    except Exception as error:  # an agent's, a scorer's or a task's own code may be called: whatever it raises, a run goes on
        logger.warning("%s fingerprint: %s is unknown (%s: %s); it will equal none", kind, name, type(error).__name__, error)
        return None


def digest(value: Any) -> str:
    """sha256 over the canonical JSON. Raises ``FingerprintError``."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with sorted keys, ASCII, no spaces; never a ``repr``. Raises ``FingerprintError`` for what JSON has no word for: NaN, a set, an
    object, a key that is no text."""
    try:
        _only_text_keys(value)
        return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise FingerprintError(f"no canonical JSON: {error}") from error


def _only_text_keys(value: Any) -> None:
    """``json`` writes 1 and "1" alike."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise FingerprintError(f"the key {key!r} is no text")
            _only_text_keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _only_text_keys(inner)
