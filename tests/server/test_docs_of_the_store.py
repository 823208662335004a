"""The pages about the store are held to it: their examples are run, their lists are compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route
from storekit import Kit, run

from leyden.cli import VERBS
from leyden.server import access
from leyden.server.adhoc import ask
from leyden.server.app import routes
from leyden.server.sqlite import SQLiteFile
from leyden.server.tokens import Scope, mint
from leyden.server.views import VIEWS

DOCS = Path(__file__).parents[2] / "docs"
CURL = re.compile(
    r"""^curl -s (?P<post>-X POST )?"?\$S(?P<path>/[^\s"]+)"?(?: -H '(?P<header>[^']+)')?(?: -d '(?P<body>.*)')?$""", re.MULTILINE
)


def test_every_route_stands_in_the_http_page_with_an_example() -> None:
    page = (DOCS / "http-api.md").read_text()
    registered = {(next(iter((route.methods or set()) - {"HEAD"})), route.path) for route in routes() if isinstance(route, Route)}
    sections = dict(re.findall(r"^### `([A-Z]+ [^`]+)`\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {f"{method} {path}" for method, path in registered} | {"GET /health", "GET /ready", "GET /metrics"}
    for name, text in sections.items():
        assert CURL.search(text), f"{name} has no example"


def test_the_examples_of_the_http_page_work_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "UNKNOWN", 0.0)  # the page has a token at once
    page = (DOCS / "http-api.md").read_text()

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        known: dict[str, Any] = {}

        def fill(text: str) -> str:
            for name, value in known.items():
                text = re.sub(rf"\${name}\b", lambda _, value=value: value if isinstance(value, str) else json.dumps(value), text)
            assert "$" not in text, text
            return text

        async with httpx.AsyncClient(base_url=kit.url, trust_env=False, timeout=50) as http:
            for example in CURL.finditer(page):
                if "$TOKEN" in example[0] and "TOKEN" not in known:
                    new, known["TOKEN"] = mint("admin", (Scope.ADMIN,))
                    await kit.sql.add_token(new)
                method = "POST" if example["post"] or example["body"] else "GET"
                headers = dict([fill(example["header"]).split(": ")]) if example["header"] else {}
                path = fill(example["path"])
                answer = await http.request(method, path, content=fill(example["body"] or ""), headers=headers)
                assert answer.status_code == 200, f"{example[0]}: {answer.text}"
                if (method, path) == ("POST", "/v1/rollouts"):
                    known["ROLLOUT"] = answer.json()[0]["id"]
                elif (method, path) == ("POST", "/v1/resources"):
                    known["RESOURCES"] = answer.json()["id"]
                elif path == "/v1/leases/claim":
                    known |= {name: lease["ref"] for name, lease in zip(("REF", "REF2", "REF3"), answer.json(), strict=True)}
                    known["KEY"] = answer.json()[0]["key"]

    run(check, "http-sqlite")


def test_the_page_about_views_has_every_view_and_column(tmp_path: Path) -> None:
    page = (DOCS / "sql-views.md").read_text()
    described = {
        name: re.findall(r"^\| `(\w+)`", text, re.MULTILINE)
        for name, text in re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    }
    SQLiteFile(tmp_path / "leyden.db").close()
    columns = {view.name: ask(str(tmp_path / "leyden.db"), f"SELECT * FROM {view.name}", 1).columns for view in VIEWS}
    assert described == columns


def test_the_page_about_reading_has_every_verb() -> None:
    page = (DOCS / "reading.md").read_text()
    for verb in ("rollouts", "traces", "workers", "sql", "prune", "backup", "restore"):
        assert verb in VERBS and f"leyden {verb}" in page
