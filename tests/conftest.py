"""Hypothesis profiles for every test, the broker that the client's suite meets, and the etcd that some tests need.

`check` (the default) is the same on each run, so that a red test is always the change's doing; `thorough` looks at new
and many more examples each time and prints how to reproduce what it found. Deadlines are off: the machine's speed is
no property of the code.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.subjects import NAMES

if TYPE_CHECKING:
    from tidewire.cli.local_etcd import EtcdProcess

settings.register_profile("check", max_examples=100, derandomize=True, deadline=None, database=None)
settings.register_profile("thorough", max_examples=3_000, deadline=None, print_blob=True)
settings.load_profile("check")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--against`."""
    parser.addoption(
        "--against",
        choices=NAMES,
        default=NAMES[0],
        help="the broker that tests/scenarios/client run against; every other test knows ours alone",
    )


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[EtcdProcess]":
    """One etcd for the whole run, started by the first test that asks for it; who uses it takes a root of its own."""
    # Imported here, since most runs of a few tests need neither etcd nor gRPC.
    from tests.support.etcd import running_etcd

    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd
