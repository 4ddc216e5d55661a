"""The pytest plugin, with these fixtures.

    tidewire_broker       a broker for the session, or for each worker of pytest-xdist (`TidewireBroker`)
    tidewire_namespace    a namespace of this test alone, such as `public/test-orders-t3`
    tidewire_topic        a name of this test alone, such as `test-orders-t4`, as a topic or as the prefix of topics

pytest imports this module in every run, so it imports no more than pytest has. The broker starts with the first test
that uses it. Before each further one, the plugin starts it again if it was killed, and resumes it if it was paused.
"""

from collections.abc import Generator, Iterator
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from tidewire.testing.broker import TidewireBroker

OPTIONS: Final = "tidewire_broker_options"
TENANT: Final = "public"

_FIXTURE: Final = "tidewire_broker"
_BROKER: Final = pytest.StashKey["TidewireBroker"]()
_NUMBERS: Final = count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting of the broker's options."""
    parser.addini(OPTIONS, "options of `tidewire broker` for the fixture tidewire_broker", type="args", default=[])


@pytest.fixture(scope="session")
def tidewire_broker(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[TidewireBroker]":
    """A Tidewire broker for the whole session, with Kafka's and Pulsar's protocols."""
    from tidewire.testing.broker import TidewireBroker
    from tidewire.testing.process import BrokerFailed

    try:
        broker = TidewireBroker(tmp_path_factory.mktemp("tidewire"), pytestconfig.getini(OPTIONS))
    except BrokerFailed as failure:
        raise _message(failure) from None
    pytestconfig.stash[_BROKER] = broker
    yield broker
    broker.close()


@pytest.fixture
def tidewire_namespace(request: pytest.FixtureRequest) -> str:
    """A namespace of this test alone, as TENANT/NAMESPACE. It needs no creation."""
    from tidewire.testing.names import unique_name

    return f"{TENANT}/{unique_name(request.node.name, next(_NUMBERS))}"


@pytest.fixture
def tidewire_topic(request: pytest.FixtureRequest) -> str:
    """A name of this test alone. Kafka's clients use it as it is, Pulsar's as persistent://public/default/NAME."""
    from tidewire.testing.names import unique_name

    return unique_name(request.node.name, next(_NUMBERS))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Undo the faults that an earlier test left behind."""
    broker = _used_by(item)
    if broker is not None:
        from tidewire.testing.process import BrokerFailed

        try:
            broker.mend()
        except BrokerFailed as failure:
            raise _message(failure) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the broker's log below a failed test that used it."""
    report = yield
    broker = _used_by(item) if report.failed else None
    if broker is not None:
        report.sections.append(("end of the Tidewire broker's log", broker.log_tail()))
    return report


def _used_by(item: pytest.Item) -> "TidewireBroker | None":
    """Return the broker, if it has been started and the test uses it."""
    broker = item.config.stash.get(_BROKER, None)
    return broker if broker is not None and _FIXTURE in getattr(item, "fixturenames", ()) else None


def _message(failure: Exception) -> BaseException:
    """Return what fails a test with the message alone. The code that noticed the broker's failure tells nothing."""
    return pytest.fail.Exception(str(failure), pytrace=False)
