"""Hypothesis profiles for every test, the broker of the client's suite, and the etcd that some tests need.

`check` (the default) is the same on each run, so a failing test is always the change's fault. `thorough` draws new and
many
more examples each time, and prints how to reproduce a failure. Deadlines are off, because they depend on the machine's
speed.
"""

import gc
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.examples import CHECKED
from tests.support.left_out import print_left_out
from tests.support.subjects import NAMES

if TYPE_CHECKING:
    from tidewire.cli.local_etcd import EtcdProcess

# For the tests of our own plugin. It must be loaded here, and it costs nothing where its fixtures are not used.
pytest_plugins = ("pytester",)

settings.register_profile("check", max_examples=CHECKED, derandomize=True, deadline=None, database=None)
settings.register_profile("thorough", max_examples=3_000, deadline=None, print_blob=True)
settings.load_profile("check")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this project's tests."""
    parser.addoption(
        "--against",
        choices=NAMES,
        default=NAMES[0],
        help="the broker that tests/scenarios/client run against; every other test knows ours alone",
    )
    parser.addoption(
        "--kafka-broker",
        choices=("tidewire", "kafka"),
        default="tidewire",
        help="the broker that tests/interop/kafka run against; a real Kafka shows what the scenarios should say",
    )
    parser.addoption("--rewrite-stories", action="store_true", help="write the stories of a cluster as they are now")
    parser.addoption("--story-seed", type=int, help="the seed of the drawn story of a cluster to play")


def pytest_configure() -> None:
    """Let tests press Ctrl-C: a job that a script starts in the background ignores it, and so do its processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Hide the collected tests from the garbage collector, which would visit them for a tenth of the tests' time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the tests that were left out. Say how to run the failed ones alone: they draw the same examples again."""
    print_left_out(terminalreporter, config)
    if terminalreporter.stats.keys() & {"failed", "error"}:
        terminalreporter.write_line("Run the failed tests again: .venv/bin/python -m pytest --last-failed")


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[EtcdProcess]":
    """Run one etcd for the whole run, started by the first test that needs it. Each user takes a separate root."""
    # Imported here, since most runs of a few tests need neither etcd nor gRPC.
    from tests.support.etcd import running_etcd

    with running_etcd(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd
