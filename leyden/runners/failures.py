"""Whose fault an exception is: it decides whether the attempt is retried."""

from __future__ import annotations

from leyden.errors import Busy, Unavailable
from leyden.types import FailureKind

# By "module.name" of the class or one of its bases, so that no SDK has to be imported to tell.
_INFRASTRUCTURE = {
    "openai.APIConnectionError", "openai.InternalServerError", "openai.RateLimitError",
    "anthropic.APIConnectionError", "anthropic.InternalServerError", "anthropic.RateLimitError",
    "httpx.TransportError", "agents.exceptions.ModelTimeoutError", "builtins.ConnectionError",
}  # fmt: skip
_TOOL = {
    "builtins.TimeoutError", "mcp.shared.exceptions.McpError", "agents.exceptions.ToolTimeoutError",
    "agents.exceptions.MCPToolCancellationError",
}  # fmt: skip


# The proxy's own refusals (leyden/proxy/refusal.py), as the SDK hands on their code: the attempt's lease or its checkpoint has gone.
_PROXY_REFUSALS = {"lease_lost", "checkpoint_gone"}


class ToolFailure(Exception):
    """Raise it in an agent when a tool has failed, not the model: the attempt is retried rather than scored."""


class InfrastructureFailure(Exception):
    """Raise it in an agent when the LLM's endpoint or the machine has failed: the attempt is retried rather than scored."""


def classify(error: BaseException) -> FailureKind:
    """INFRASTRUCTURE for an LLM endpoint that cannot be reached or answers 429 or 5xx, TOOL for a tool past its deadline, else AGENT.

    An exception raised ``from`` one of these counts as it does.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, InfrastructureFailure | Unavailable | Busy) or getattr(cause, "code", None) in _PROXY_REFUSALS:
            return FailureKind.INFRASTRUCTURE
        names = {f"{base.__module__}.{base.__qualname__}" for base in type(cause).__mro__}
        if names & _INFRASTRUCTURE:
            return FailureKind.INFRASTRUCTURE
        if isinstance(cause, ToolFailure) or names & _TOOL:
            return FailureKind.TOOL
        cause = cause.__cause__
    return FailureKind.AGENT


def describe(error: BaseException) -> str:
    """One line, bounded: ``ValueError: no number``."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
