"""Brokers for the client's suite, and the expected differences when the broker is a real Apache Pulsar."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.scenarios.client.pulsar_differences import DIFFERENCES
from tests.support.left_out import leave_out
from tests.support.processes import RunningBroker, running_broker
from tests.support.subjects import Subject, running_subject

HERE: Final = Path(__file__).parent


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    """Run one broker for the whole suite, of the kind in `--against`; each test has its own topics."""
    name = pytestconfig.getoption("against")
    with running_subject(name, tmp_path_factory.mktemp(name) / "data") as subject:
        yield subject


@pytest.fixture
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run a Tidewire broker that a test may kill."""
    with running_broker(tmp_path_factory.mktemp("mortal") / "data") as broker:
        yield broker


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Against Pulsar: leave out tests that need a Tidewire process, and expect the differences strictly."""
    if config.getoption("against") != "pulsar":
        return
    suite = [item for item in items if isinstance(item, pytest.Function) and HERE in item.path.parents]
    left_out = [item for item in suite if "mortal" in item.fixturenames or "broker" not in item.fixturenames]
    for item in suite:
        difference = DIFFERENCES.get(item.originalname)
        if difference is not None:
            item.add_marker(pytest.mark.xfail(strict=difference.always, reason=difference.cause))
    leave_out(config, items, left_out, "not played against Pulsar: they kill a process of ours, or need no broker")
