"""Errors with a code, a message and a hint: the same shape over HTTP, in Python and on the command line."""

from __future__ import annotations


class LeydenError(Exception):
    """Base of the errors a user may meet. ``hint`` says what to do next; ``status`` is the HTTP status, ``exit_code`` the CLI's."""

    code = "error"
    status = 500
    exit_code = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_dict(self) -> dict[str, dict[str, str | None]]:
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class UsageError(LeydenError):
    """Wrong use or wrong input: nothing was started or changed."""

    code = "usage"
    status = 422
    exit_code = 2


class InvalidRequest(UsageError):
    """A value that cannot be accepted; the message names the field."""

    code = "invalid"


class NotFound(LeydenError):
    """There is nothing under that id or name."""

    code = "not_found"
    status = 404
    exit_code = 2


class Unauthorized(LeydenError):
    """The store asks for a token, and there was none, or none that it knows."""

    code = "unauthorized"
    status = 401
    exit_code = 4


class Forbidden(LeydenError):
    """What was shown does not allow this."""

    code = "forbidden"
    status = 403
    exit_code = 4


class Conflict(LeydenError):
    """The same key or position already holds a different value, or the state does not allow the change."""

    code = "conflict"
    status = 409
    exit_code = 5


class LeaseLost(Conflict):
    """The fence is stale: another holder has the rollout (or run), or it is final. Nothing was changed."""

    code = "lease_lost"


class TooLarge(LeydenError):
    """A body or value is over its limit; the message gives the limit."""

    code = "too_large"
    status = 413
    exit_code = 2


class Busy(LeydenError):
    """The store is behind; try again after ``retry_after`` seconds."""

    code = "busy"
    status = 429
    exit_code = 3

    def __init__(self, message: str, hint: str | None = None, retry_after: float = 1.0) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


class Unavailable(LeydenError):
    """A part could not be reached or has died."""

    code = "unavailable"
    status = 503
    exit_code = 3


class DiskError(LeydenError):
    """Something could not be written. What was whole before still is."""

    code = "disk"
    status = 507
    exit_code = 3


# Modules that only an extra brings: who misses one is told which to install.
EXTRAS = {
    "torch": "train", "transformers": "train", "trl": "train", "peft": "train", "datasets": "train", "accelerate": "train",
    "gguf": "train", "numpy": "train", "safetensors": "train", "jinja2": "train", "tokenizers": "train",
    "llguidance": "train",
    "agents": "runners", "openai": "runners", "mcp": "runners", "opentelemetry": "runners", "litellm": "litellm",
    "psycopg": "postgres",
}  # fmt: skip


class MissingExtra(UsageError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed", f"pip install 'leyden[{extra}]'")
