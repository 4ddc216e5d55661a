"""Credentials over HTTP."""

import pytest

from broker.addresses import Address
from tests.support.http import LAYOUT, FakeTopics, request


@pytest.mark.parametrize("given", ["Bearer a.b.c", "Basic YTpi", ""])
@pytest.mark.parametrize(("method", "path"), [("PUT", LAYOUT), ("GET", "/metrics"), ("GET", "/nothing")])
async def test_credentials_are_refused(server: Address, topics: FakeTopics, given: str, method: str, path: str) -> None:
    """E20: the broker does not check them, so it must not seem to accept them."""
    answer = await request(server, method, path, headers={"authorization": given})
    assert answer.status == 403
    assert "does not check credentials" in answer.reason
    assert "www-authenticate" not in answer.headers
    assert topics.layouts == {}
