"""Digests of what was asked (the environment) and of who answered (the policy), by component, so that a mismatch says what changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class FingerprintError(ValueError):
    """A component cannot be written down so that equal means equal."""


class MismatchError(ValueError):
    """Two results are not about the same environment."""


@dataclass(frozen=True)
class Fingerprint:
    """``digest`` over ``components`` (name → digest, None where one could not be taken). With any None the whole is None, and a None
    equals nothing, another None included."""

    digest: str | None
    components: Mapping[str, str | None] = field(default_factory=dict)

    def matches(self, other: Fingerprint) -> bool:
        return self.digest is not None and self.digest == other.digest
