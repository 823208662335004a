"""How the proxy says no: OpenAI's error shape, which every client of that API already reads."""

from __future__ import annotations

from leyden.errors import LeydenError

_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 409: "conflict_error", 413: "invalid_request_error",
}  # fmt: skip


class Refusal(LeydenError):
    """A call answered with ``{"error": {"message", "type", "code", "param"}}`` and an HTTP status.

    ``body``: an upstream's own error body, handed to the agent as it came. ``retry_after``: that header's value.
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
        content_type: str = "application/json",
        retry_after: str | None = None,
    ) -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code
        self.param = param
        self.body = body
        self._content_type = content_type
        self._retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        headers = {"content-type": self._content_type, "x-leyden-code": self.code}  # for clients whose errors keep no body
        if self._retry_after is not None:
            headers["retry-after"] = self._retry_after
        if self.status == 409:
            headers["x-should-retry"] = "false"  # OpenAI's SDKs take 409 for a lock timeout and would try again
        return headers

    def as_openai(self) -> dict[str, dict[str, str | None]]:
        message = f"{self.message} ({self.hint})" if self.hint else self.message
        return {"error": {"message": message, "type": _TYPES.get(self.status, "api_error"), "code": self.code, "param": self.param}}


def engine_gone(message: str) -> Refusal:
    """Nobody answers for the deployment: not the call's fault, unlike an error that the engine itself sends."""
    return Refusal(503, "engine_gone", message, "hand the rollout back: it is run again when an engine answers")
