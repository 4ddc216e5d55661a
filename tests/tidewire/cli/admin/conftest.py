"""A topic of each kind."""

import uuid

import pytest

from tests.tidewire.cli.conftest import CommandLine


@pytest.fixture(params=["scalable", "regular", "partitioned"])
def each_kind(tidewire: CommandLine, request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses, of each kind in turn. The first and the last have two parts."""
    kind: str = request.param
    scheme = "topic" if kind == "scalable" else "persistent"
    name = f"{scheme}://public/default/{kind}-{uuid.uuid4().hex}"
    parts = {"scalable": ("--segments", "2"), "regular": (), "partitioned": ("--partitions", "2")}
    tidewire.well("topics", "create", name, *parts[kind])
    return name
