"""What a browser sends for web pages: only those of the store's own origin are answered."""

from __future__ import annotations

import httpx
from storekit import Kit, run

from leyden.server.app import create_app

SENT = [
    ({"sec-fetch-site": "cross-site"}, 403),  # an <img>, a link, a form of another site
    ({"sec-fetch-site": "same-site"}, 403),  # another port of this machine
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"sec-fetch-site": "none"}, 200),  # typed into the address bar
    ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, 403),
    ({"host": "localhost:4747", "origin": "http://localhost:4747"}, 200),
    ({"host": "localhost:4747", "origin": "http://LOCALHOST:4747"}, 200),
    ({"host": "localhost:4747", "origin": "http://localhost:4748"}, 403),
    ({"host": "localhost:4747", "origin": "http://127.0.0.1:4747"}, 403),
    ({"host": "localhost:4747", "origin": "null"}, 403),  # a sandboxed frame, a file
    ({"host": "rebound.example:4747", "origin": "http://rebound.example:4747"}, 403),  # a name made to resolve to 127.0.0.1
    ({"host": "rebound.example"}, 403),
]


def test_a_page_of_another_origin_cannot_touch_a_store_on_this_machine() -> None:
    async def check(kit: Kit) -> None:
        transport = httpx.ASGITransport(create_app(kit.sql))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4747") as http:
            for headers, status in SENT:
                before = len(await kit.sql.list_rollouts())
                # text/plain is what a page may send anywhere without asking first
                simple = {"content-type": "text/plain", **headers}
                for answer in (
                    await http.post("/v1/rollouts", json={"rollouts": [{"input": 1}]}, headers=simple),
                    await http.get("/health", headers=headers),
                ):
                    assert answer.status_code == status, f"{headers}: {answer.text}"
                    assert "access-control-allow-origin" not in answer.headers
                assert len(await kit.sql.list_rollouts()) - before == (status == 200)

    run(check)


def test_a_browser_that_asks_first_whether_it_may_send_is_told_no() -> None:
    async def check(kit: Kit) -> None:
        transport = httpx.ASGITransport(create_app(kit.sql))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4747") as http:
            asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            answer = await http.options("/v1/rollouts", headers=asked)
            assert answer.status_code == 403 and not [name for name in answer.headers if name.startswith("access-control")]

    run(check)


def test_a_store_that_other_machines_reach_is_served_under_any_name_but_not_to_pages_of_others() -> None:
    async def check(kit: Kit) -> None:
        transport = httpx.ASGITransport(create_app(kit.sql, hosts=None))
        async with httpx.AsyncClient(transport=transport, base_url="http://store.example:4747") as http:
            assert (await http.get("/health")).status_code == 200
            assert (await http.get("/health", headers={"origin": "https://evil.example"})).status_code == 403
            assert (await http.get("/health", headers={"sec-fetch-site": "cross-site"})).status_code == 403

    run(check)
