"""Whose fault an exception is: it decides whether the attempt is retried."""

from __future__ import annotations

from collections.abc import Iterator

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

# The proxy's refusals (leyden/proxy/refusal.py) that say something of the engine, the store or the lease, and nothing of the agent.
GONE_CODES = {"engine_gone", "checkpoint_gone", "proxy_stopped", "store_unavailable", "upstream_not_recorded"}
_BROKEN_CODES = {"lease_lost", "upstream_broken", "upstream_timeout", "internal_error"}


class ToolFailure(Exception):
    """Raise it in an agent when a tool has failed, not the model: the attempt is retried rather than scored."""


class InfrastructureFailure(Exception):
    """Raise it in an agent when the LLM's endpoint or the machine has failed: the attempt is retried rather than scored."""


class AttemptFailed(Exception):
    """For what runs agents on behalf of others, and has found out already whose fault it was."""

    def __init__(self, message: str, kind: FailureKind) -> None:
        super().__init__(message)
        self.kind = kind


def classify(error: BaseException) -> FailureKind:
    """INFRASTRUCTURE for an LLM endpoint that cannot be reached or answers 429 or 5xx, TOOL for a tool past its deadline, else AGENT.

    An exception raised ``from`` one of these counts as it does, and so does a group that holds one.
    """
    for cause in causes(error):
        if isinstance(cause, AttemptFailed):
            return cause.kind
        if isinstance(cause, InfrastructureFailure | Unavailable | Busy) or refusal_code(cause) in GONE_CODES | _BROKEN_CODES:
            return FailureKind.INFRASTRUCTURE
        names = class_names(cause)
        if names & _INFRASTRUCTURE:
            return FailureKind.INFRASTRUCTURE
        if isinstance(cause, ToolFailure) or names & _TOOL:
            return FailureKind.TOOL
    return FailureKind.AGENT


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and the members of groups on the way; each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        if cause.__cause__ is not None:
            waiting.append(cause.__cause__)
        if isinstance(cause, BaseExceptionGroup):
            waiting.extend(cause.exceptions)


def class_names(error: BaseException) -> set[str]:
    return {f"{base.__module__}.{base.__qualname__}" for base in type(error).__mro__}


def refusal_code(error: BaseException) -> str | None:
    """The proxy's code in an SDK's error: OpenAI's takes it from the body, all of them keep the response with its headers."""
    code = getattr(error, "code", None)
    if isinstance(code, str):
        return code
    headers = getattr(getattr(error, "response", None), "headers", None)
    found = headers.get("x-leyden-code") if headers is not None else None
    return found if isinstance(found, str) else None


def describe(error: BaseException) -> str:
    """One line, bounded: ``ValueError: no number``."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its class may be anybody's
        text = "(it has no text)"
    if isinstance(error, AttemptFailed):
        return text[:500]
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
