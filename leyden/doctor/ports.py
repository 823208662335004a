"""The ports that servers want, and who has them."""

from __future__ import annotations

from typing import Any

import httpx

from leyden.doctor.finding import Finding, ok, problem, warning
from leyden.errors import UsageError
from leyden.ports import check_port_free

USUAL = {4747: "the store", 12358: "the proxy of the recipe"}
HOST = "127.0.0.1"


def check_port(port: int, wanted: bool = False) -> Finding:
    """``wanted``: the user named it, so that a stranger there is a problem; a usual port can be chosen otherwise."""
    check = f"port {port}"
    purpose = f" (for {USUAL[port]})" if port in USUAL else ""
    try:
        check_port_free(HOST, port)
    except UsageError as error:
        if (health := health_of(f"http://{HOST}:{port}")) and health.get("name") == "leyden-store":
            return ok(check, f"a Leyden store, version {health.get('version')}")
        taken = error.message.removeprefix(f"{check} is ")
        fix = (
            "store --port 4748, and --store http://127.0.0.1:4748"
            if port == 4747
            else "choose another port (0: any free one), or end that process"
        )
        return (problem if wanted else warning)(check, f"{taken}{purpose}", fix)
    return ok(check, f"free{purpose}")


def health_of(url: str) -> dict[str, Any] | None:
    """What ``/health`` answers, where it is a JSON object; None for silence and for anything else."""
    try:
        found = httpx.get(f"{url.rstrip('/')}/health", timeout=1.0, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    return found if isinstance(found, dict) else None
