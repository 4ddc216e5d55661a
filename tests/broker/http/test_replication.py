"""Administrators' requests for replication between clusters are refused clearly."""

import pytest

from broker.addresses import Address
from tests.support.http import FakeTopics, request


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/admin/v2/clusters/far"),
        ("POST", "/admin/v2/namespaces/public/default/replication"),
        ("POST", "/admin/v2/persistent/public/default/x/replication"),
        ("POST", "/admin/v2/scalable/public/default/x/replication"),
        ("POST", "/admin/v2/segments/public/default/x/0000-ffff-0/replication"),
    ],
)
async def test_replication_is_refused(server: Address, topics: FakeTopics, method: str, path: str) -> None:
    """T36: no topic with transactions can become a replicated one."""
    before = dict(topics.layouts)
    answer = await request(server, method, path, body=b'["far"]')
    assert 400 <= answer.status < 500 or answer.status == 501, answer
    assert topics.layouts == before
