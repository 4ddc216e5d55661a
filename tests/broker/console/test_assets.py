"""The console's files: what is in the package is whole, is served as it is, and comes from nowhere else."""

import re
from typing import Final

import pytest
import trio
from starlette.types import ASGIApp

from broker.addresses import Address
from broker.console.assets import PAGE, Assets
from broker.http.application import build_application
from broker.http.listener import serve_http
from storage.metadata.memory import MemoryStore
from tests.support.http import FakeCluster, FakeMonitor, FakeTopics, request

IMPORT: Final = re.compile(r'(?:^|[};\n])\s*(?:import|export)\b[^"\n;]*?\bfrom\s*"([^"]+)"')
OWN: Final = sorted(path for path in PAGE.rglob("*.js") if path.parent.name != "vendor")


@pytest.fixture
async def server(nursery: trio.Nursery) -> Address:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    application: ASGIApp = build_application(
        FakeTopics(), FakeMonitor(), MemoryStore(), FakeCluster(), console=Assets().routes()
    )
    address: Address = await nursery.start(serve_http, application, listener)
    return address


async def test_the_page_runs_only_what_the_broker_serves(server: Address) -> None:
    """Nothing inside the page is code, and the policy allows no other source."""
    page = await request(server, "GET", "/")
    assert page.status == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert page.headers["cache-control"] == "no-cache"
    text = page.body.decode()
    assert "{{" not in text
    assert not re.search(r"<script(?![^>]*\bsrc=)", text)
    assert not re.search(r"\bon[a-z]+=|\bstyle=", text)
    assert set(re.findall(r'(?:src|href)="(/[a-z]+)', text)) == {"/console"}
    again = await request(server, "GET", "/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_every_file_of_the_page_is_served_for_good(server: Address) -> None:
    text = (await request(server, "GET", "/")).body.decode()
    for path in re.findall(r'(?:src|href)="([^"]+)"', text):
        answer = await request(server, "GET", path)
        assert answer.status == 200, path
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["no-such.js", "../assets.py", "%2e%2e/assets.py", "vendor", ""])
async def test_nothing_else_is_served(server: Address, path: str) -> None:
    assert (await request(server, "GET", f"/console/assets/{Assets().version}/{path}")).status == 404


async def test_a_file_of_another_release_is_refused(server: Address) -> None:
    """A page must not run modules of two releases."""
    refused = await request(server, "GET", "/console/assets/0000000000000000/app.js")
    assert refused.status == 404
    assert "Reload the page" in refused.reason


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_module_imports_only_files_that_are_there(path: object) -> None:
    """There is no build step that would find a missing module."""
    assert hasattr(path, "read_text")
    text = path.read_text()
    assert not re.search(r"https?://(?!www\.w3\.org)", text), "nothing comes from elsewhere"
    for imported in IMPORT.findall(text):
        assert imported.startswith("."), f"a browser cannot resolve {imported}"
        assert (path.parent / imported).resolve().is_file(), imported  # type: ignore[attr-defined]


def test_each_library_comes_with_its_licence() -> None:
    for name in ("preact", "htm", "uplot"):
        licence = (PAGE / "vendor" / f"{name}.LICENSE.txt").read_text()
        assert "MIT" in licence or "Apache License" in licence
