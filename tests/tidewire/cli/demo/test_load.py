"""The load against a broker process that it kills: everything counts once."""

import subprocess
from collections import Counter
from pathlib import Path

import anyio
import pytest

import tidewire
from tidewire.cli.administration import Administration
from tidewire.cli.demo.data import AircraftDay, Event, Kind
from tidewire.cli.demo.load import Load, Tally
from tidewire.cli.demo.process import BrokerFailed, BrokerProcess
from tidewire.cli.endings import CommandFailed

TOPIC = "topic://public/default/flights"
ENDS: list[tuple[Kind, str]] = [("departed", "JFK"), ("landed", "LAX")]
DAYS = [
    AircraftDay(
        f"N{number}|20130101",
        number % 10 == 3,
        tuple(Event(kind, airport, 1_357_034_400_000 + number, f"{number} {kind}".encode()) for kind, airport in ENDS),
    )
    for number in range(200)
]


async def read(service_url: str, count: int) -> list[bytes]:
    async with tidewire.connect(service_url) as client, client.reader(TOPIC) as reader:
        return [(await reader.receive()).value for _ in range(count)]


def end_behind_its_back(broker: BrokerProcess) -> None:
    assert broker._process is not None
    broker._process.kill()
    broker._process.wait()


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "data", tmp_path / "broker.log")


def load(broker: BrokerProcess, said: list[str] | None = None) -> Tally:
    progress: list[int] = []
    lines = [] if said is None else said
    tally = anyio.run(Load(broker, TOPIC, iter(DAYS), len(DAYS), say=lines.append, show_progress=progress.append).run)
    assert progress == list(range(1, len(DAYS) + 1))
    return tally


def test_everything_is_there_once_after_splits_and_a_kill(broker: BrokerProcess) -> None:
    """T10, T17, T20: committed messages are read once, over splits and kill -9; aborted ones never are."""
    said: list[str] = []
    with broker:
        first = broker.pid
        tally = load(broker, said)
        assert broker.pid != first
        # A message too many would come before the last one is read, or change the count of another.
        found = anyio.run(read, broker.service_url, 2 * len(DAYS))
    assert Counter(found) == Counter(event.value for day in DAYS for event in day.events)
    assert (tally.committed, tally.aborted, tally.splits, tally.open) == (200, 20, 2, 0)
    assert tally.killed_after >= 100
    assert tally.events_sent >= 2 * 200
    # Some of those to be aborted may have met the kill.
    assert tally.departures_sent >= 200
    assert sum("kill -9" in line for line in said) == 1
    assert sum("split segment" in line for line in said) == 2


def test_a_topic_that_is_there_already_is_told(broker: BrokerProcess) -> None:
    with broker:
        Administration(broker.http_url).create(TOPIC)
        with pytest.raises(CommandFailed, match=r"already exists.* It needs a new broker. Use another --data-dir than"):
            load(broker)


def test_a_broker_that_ended_by_itself_is_the_reason_told(broker: BrokerProcess) -> None:
    with broker:
        end_behind_its_back(broker)
        with pytest.raises(BrokerFailed, match="ended by itself with status -9"):
            load(broker)
        broker.kill()
        broker.start()


def test_a_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file, no folder")
    with (
        pytest.raises(BrokerFailed, match=r"did not become ready. The end of its log:\n.*data"),
        BrokerProcess(tmp_path / "data", tmp_path / "broker.log"),
    ):
        pytest.fail("it started")


def test_a_broker_that_ended_before_it_was_asked_to_is_told(broker: BrokerProcess) -> None:
    broker.start()
    end_behind_its_back(broker)
    with pytest.raises(BrokerFailed, match="ended by itself with status -9"):
        broker.stop()


def test_nothing_runs_on_after_an_error(broker: BrokerProcess) -> None:
    def fail() -> None:
        with broker:
            processes.append(broker._process)
            raise ZeroDivisionError

    processes: list[subprocess.Popen[str] | None] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    (process,) = processes
    assert process is not None
    assert process.poll() == -9
