"""A page of another origin, in a real browser, against an open store on the same machine.

Where a Chromium is: ``LEYDEN_BROWSER``, or on the PATH. Skipped without one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from asgi import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from storekit import Kit, run

from leyden.server.wire import PageCheck

BROWSER = os.environ.get("LEYDEN_BROWSER") or next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--no-zygote", "--single-process", "--disable-gpu", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",
    "--disable-features=LocalNetworkAccessChecks",  # newer browsers ask the reader first; older ones do not
)  # fmt: skip
# Everything a page may send anywhere without asking, what needs to be asked first, and a name of its own that resolves to this machine.
PAGE = """
<form id=form method=post enctype="text/plain" target=frame action="STORE/v1/rollouts">
  <input name='{"rollouts":[{"input":1}],"idempotency_key":"' value='"}'>
</form>
<iframe name=frame></iframe>
<script>
  const body = JSON.stringify({rollouts: [{input: "evil"}]});
  const send = (url, how) => fetch(url, how).then(answer => answer.type, () => "failed");
  (async () => {
    document.getElementById("form").submit();
    const image = new Promise(done => { const i = new Image(); i.onerror = i.onload = done; i.src = "STORE/v1/runs"; });
    const told = await Promise.all([
      send("STORE/v1/rollouts", {method: "POST", mode: "no-cors", body, headers: {"content-type": "text/plain"}}),
      send("STORE/v1/rollouts", {method: "POST", body, headers: {"content-type": "application/json"}}),
      send("STORE/v1/runs"),
      send("REBOUND/v1/rollouts", {method: "POST", mode: "no-cors", body}),
      image,
    ]);
    await fetch("/told", {method: "POST", body: told.join()});
  })();
</script>
"""


async def visit(store_url: str, profile: Path) -> str:
    """What the page's script was told, once it has tried everything."""
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE.replace("STORE", store_url).replace("REBOUND", store_url.replace("127.0.0.1", "rebound.example")))

    async def tell(request: Request) -> Response:
        told.set_result((await request.body()).decode())
        return Response()

    async with serving(Starlette(routes=[Route("/", page), Route("/told", tell, methods=["POST"])])) as url:
        assert BROWSER is not None
        silent = asyncio.subprocess.DEVNULL
        browser = await asyncio.create_subprocess_exec(BROWSER, *FLAGS, f"--user-data-dir={profile}", url, stdout=silent, stderr=silent)
        try:
            return await asyncio.wait_for(told, 50)
        finally:
            browser.kill()
            await browser.wait()


@pytest.mark.skipif(BROWSER is None, reason="no browser: set LEYDEN_BROWSER to a Chromium")
@pytest.mark.parametrize("checked", [True, False], ids=["as it is", "without its check, to see that the page would"])
def test_a_page_in_a_browser_neither_writes_nor_reads(checked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not checked:
        monkeypatch.setattr(PageCheck, "_objection", lambda self, headers: None)

    async def check(kit: Kit) -> None:
        assert kit.url is not None
        written, asked_first, read, rebound, _ = (await visit(kit.url, tmp_path)).split(",")
        assert (written, asked_first, read, rebound) == ("opaque", "failed", "failed", "opaque"), "a page is told nothing"
        assert bool(await kit.sql.list_rollouts()) != checked

    run(check, "http-sqlite")
