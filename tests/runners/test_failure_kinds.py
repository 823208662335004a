"""Whose fault an exception is, told by the exceptions that the real SDKs raise."""

from __future__ import annotations

import httpx
import openai
import pytest

from leyden.errors import Unavailable
from leyden.runners.failures import InfrastructureFailure, ToolFailure, classify
from leyden.types import FailureKind

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1/chat/completions")


def refused(kind: type[openai.APIStatusError], status: int, code: str | None = None) -> openai.APIStatusError:
    return kind("refused", response=httpx.Response(status, request=REQUEST), body={"code": code, "message": "refused"})


def caused_by(cause: BaseException) -> BaseException:
    try:
        raise RuntimeError("wrapped") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (openai.APIConnectionError(request=REQUEST), FailureKind.INFRASTRUCTURE),
        (openai.APITimeoutError(request=REQUEST), FailureKind.INFRASTRUCTURE),
        (refused(openai.InternalServerError, 503), FailureKind.INFRASTRUCTURE),
        (refused(openai.RateLimitError, 429), FailureKind.INFRASTRUCTURE),
        (refused(openai.ConflictError, 409, "checkpoint_gone"), FailureKind.INFRASTRUCTURE),
        (refused(openai.ConflictError, 409, "lease_lost"), FailureKind.INFRASTRUCTURE),
        (refused(openai.ConflictError, 409), FailureKind.AGENT),
        (refused(openai.BadRequestError, 400), FailureKind.AGENT),
        (httpx.ConnectError("refused"), FailureKind.INFRASTRUCTURE),
        (ConnectionResetError(), FailureKind.INFRASTRUCTURE),
        (Unavailable("away"), FailureKind.INFRASTRUCTURE),
        (InfrastructureFailure(), FailureKind.INFRASTRUCTURE),
        (TimeoutError(), FailureKind.TOOL),
        (ToolFailure(), FailureKind.TOOL),
        (caused_by(ToolFailure()), FailureKind.TOOL),
        (caused_by(refused(openai.InternalServerError, 500)), FailureKind.INFRASTRUCTURE),
        (ValueError("no number"), FailureKind.AGENT),
        (KeyError("code"), FailureKind.AGENT),
    ],
)
def test_an_exception_is_the_fault_of(error: BaseException, kind: FailureKind) -> None:
    assert classify(error) is kind
