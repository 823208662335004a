"""How the proxy says no: OpenAI's error shape, or that of the form in which the agent asked."""

from __future__ import annotations

from typing import Any

import orjson

from leyden.errors import LeydenError

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 409: "conflict_error", 413: "invalid_request_error",
    429: "rate_limit_error",
}  # fmt: skip


class Refusal(LeydenError):
    """A call answered with ``{"error": {"message", "type", "code", "param"}}`` and an HTTP status.

    ``body``: an upstream's own error body; one that is JSON is handed to the agent as it came. ``retry_after``: that header's value.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str | None = None,
        *,
        param: str | None = None,
        body: bytes | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.param = param
        self.body = body if body is not None and _object(body) is not None else None
        self._retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "x-leyden-code": self.code}  # for clients whose errors keep no body
        if self._retry_after is not None:
            headers["retry-after"] = self._retry_after
        if self.status == 409:
            headers["x-should-retry"] = "false"  # OpenAI's and Anthropic's SDKs take 409 for a lock timeout and would try again
        return headers

    @property
    def text(self) -> str:
        """Message and hint in one; of an upstream's error, what it says itself."""
        error = (_object(self.body) or {}).get("error") if self.body is not None else None
        said = error.get("message") if isinstance(error, dict) else error
        if isinstance(said, str) and said:
            return said
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def as_openai(self) -> dict[str, dict[str, str | None]]:
        message = f"{self.message} ({self.hint})" if self.hint else self.message
        return {"error": {"message": message, "type": _TYPES.get(self.status, "api_error"), "code": self.code, "param": self.param}}


ENGINE_GONE = "engine_gone"
_HAND_BACK = "hand the rollout back: it is run again when an engine answers"


class NotReached(Refusal):
    """No connection: the call has not begun, and may be sent elsewhere."""

    def __init__(self, message: str) -> None:
        super().__init__(503, ENGINE_GONE, message, _HAND_BACK)


def engine_gone(message: str) -> Refusal:
    """Nobody answers for the deployment: not the call's fault, unlike an error that the engine itself sends."""
    return Refusal(503, ENGINE_GONE, message, _HAND_BACK)


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
