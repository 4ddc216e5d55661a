"""`tidewire broker` with its metadata in a real etcd, started with every wrong combination of folder, id and root."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
import trio

from broker.cluster.ownership import claim_key
from broker.metadata_place import root_of
from storage.journal_records import JOURNALS
from storage.metadata.store import Record
from tests.support.etcd import etcd_store
from tests.support.plain_client import TOPIC, Client, stored
from tests.support.processes import BROKER_COMMAND, FREE_PORTS, RunningBroker, running_broker
from tidewire.cli.local_etcd import EtcdProcess
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

MESSAGES = 17
END_SECONDS_MAX = 60
Type = pb.BaseCommand.Type


def publish(broker: RunningBroker, first: int = 0) -> None:
    """Publish the messages, each durable before the next."""
    with Client(broker) as client:
        assert client.produce().type == Type.PRODUCER_SUCCESS
        for number in range(first, first + MESSAGES):
            assert client.publish(number).type == Type.SEND_RECEIPT


@pytest.fixture
def place(etcd_server: EtcdProcess, tmp_path: Path) -> tuple[str, ...]:
    """Return flags of a separate cluster in the common etcd."""
    config = tmp_path / "broker.toml"
    config.write_text(f'cluster = "{tmp_path.name}"\n')
    return ("--metadata", f"etcd://{etcd_server.endpoint}", "--config", str(config))


def refused(data_dir: Path, *arguments: str) -> str:
    """Start a broker that must refuse. Return its only sentence; it must not write into the folder."""
    before = _listing(data_dir)
    ended = subprocess.run(
        [*BROKER_COMMAND, *FREE_PORTS, "--data-dir", str(data_dir), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_SECONDS_MAX,
    )
    assert ended.returncode == 1, ended
    assert ended.stdout == "", "it never said that it is ready"
    assert "Traceback" not in ended.stderr
    assert _listing(data_dir) == before
    line = ended.stderr.splitlines()[-1]
    assert line.endswith(".")
    return line


def _listing(folder: Path) -> dict[str, int]:
    # The size of a lock's file says nothing; a stopped broker's other files do not change.
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def test_a_brokers_other_folder_loses_nothing(place: tuple[str, ...], tmp_path: Path) -> None:
    """E1, E2: the same id in a new folder is refused; its own folder has every message, even after a move."""
    mine, other, moved = tmp_path / "mine", tmp_path / "other", tmp_path / "moved"
    with running_broker(mine, *place) as broker:
        publish(broker)
        broker.kill()
    sentence = refused(other, *place)
    assert str(mine) in sentence
    assert str(other) in sentence
    assert not other.exists()
    mine.rename(moved)
    with running_broker(moved, *place) as broker:
        assert stored(broker) == MESSAGES


def test_a_second_broker_in_its_own_folder_does_not_serve_anothers_topic(
    place: tuple[str, ...], tmp_path: Path
) -> None:
    """E2, E4: it is refused, and does not look empty, while the first is stopped; the first has all messages."""
    with running_broker(tmp_path / "one", *place, "--broker-id", "one") as one:
        publish(one)
        one.kill()
    with running_broker(tmp_path / "two", *place, "--broker-id", "two") as two:
        wait_until_claimable(place)
        with Client(two) as client:
            answer = client.produce()
        assert answer.type == Type.ERROR
        assert "where broker one wrote" in answer.error.message, answer
        with running_broker(tmp_path / "one", *place, "--broker-id", "one") as one:
            assert stored(one) == MESSAGES


def wait_until_claimable(place: tuple[str, ...]) -> None:
    """Wait until etcd has ended the dead broker's session, and its claim with it."""
    _wait_for(place, claim_key(TOPIC), lambda claim: claim is None)


def wait_until_recovered(place: tuple[str, ...], broker_id: str) -> None:
    """Wait until a survivor has replayed the first life of that broker's journal."""
    _wait_for(
        place, JOURNALS + broker_id, lambda record: record is not None and orjson.loads(record.value)["epoch"] > 1
    )


def _wait_for(place: tuple[str, ...], key: str, is_reached: Callable[[Record | None], bool]) -> None:
    _metadata, server, _config, config = place
    cluster = Path(config).parent.name

    async def watch() -> None:
        async with (
            etcd_store(server.removeprefix("etcd://"), root=root_of(cluster)) as store,
            store.watch_key(key) as records,
        ):
            while not is_reached(await records.next()):
                pass  # It has not come to that yet.

    trio.run(watch)


def test_a_second_broker_of_the_folder_replays_the_dead_ones_journal(place: tuple[str, ...], tmp_path: Path) -> None:
    """E2, E4: a stopped process that resumes gets no plain publish confirmed."""
    data = tmp_path / "data"
    with running_broker(data, *place, "--broker-id", "one") as one:
        publish(one)
        late = Client(one)
        assert late.produce().type == Type.PRODUCER_SUCCESS
        one.process.send_signal(signal.SIGSTOP)
        try:
            with late, running_broker(data, *place, "--broker-id", "two") as two:
                # A stopped broker cannot be told from one that is slow, so its journal is recovered after a grace.
                wait_until_recovered(place, "one")
                assert stored(two) == MESSAGES
                late.send_publish(99)
                one.process.send_signal(signal.SIGCONT)
                try:
                    answer = late.next_frame().command
                except (AssertionError, OSError):
                    answer = None
                assert answer is None or answer.type != Type.SEND_RECEIPT
                assert stored(two) == MESSAGES
        finally:
            one.process.send_signal(signal.SIGCONT)
        one.kill()
    with running_broker(data, *place, "--broker-id", "one") as one:
        assert stored(one) == MESSAGES


def test_two_brokers_of_one_id(place: tuple[str, ...], tmp_path: Path) -> None:
    """E4: the second is refused while the first lives, in the same folder and in a copy of it."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with running_broker(data, *place) as first:
        publish(first)
        shutil.copytree(data, copy)
        assert "already uses the data folder" in refused(data, *place)
        assert "A broker with the id broker-1 already runs at pulsar://" in refused(copy, *place)
        publish(first, MESSAGES)
        assert stored(first) == 2 * MESSAGES


def test_kill_and_restart_in_the_same_folder_does_not_wait(place: tuple[str, ...], tmp_path: Path) -> None:
    """E4: the lock shows that the earlier process is gone, although its session has not ended yet."""
    with running_broker(tmp_path / "data", *place) as broker:
        publish(broker)
        for _ in range(3):
            broker.kill()
            broker.restart()
            assert "waiting for the end of an earlier session" not in broker.stderr
        assert stored(broker) == MESSAGES


def test_an_older_copy_of_the_folder(place: tuple[str, ...], tmp_path: Path) -> None:
    """E1: it is refused once the original has been started since; the original continues."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with running_broker(data, *place) as broker:
        publish(broker)
    shutil.copytree(data, copy)
    with running_broker(data, *place) as broker:
        publish(broker, MESSAGES)
    sentence = refused(copy, *place)
    assert "this folder is an older copy" in sentence
    assert str(data) in sentence
    with running_broker(data, *place) as broker:
        assert stored(broker) == 2 * MESSAGES


def test_embedded_metadata_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """E1, E3: it was removed beside existing ledgers, or is requested for ledgers of etcd's cluster."""
    data = tmp_path / "data"
    with running_broker(data) as broker:
        publish(broker)
    (data / "metadata").rename(tmp_path / "metadata")
    sentence = refused(data)
    assert f"{data}/metadata holds no metadata" in sentence
    (tmp_path / "metadata").rename(data / "metadata")
    with running_broker(data) as broker:
        assert stored(broker) == MESSAGES


def test_journal_files_that_are_gone(tmp_path: Path) -> None:
    """E3: every file of the journal is removed, with messages that only it had."""
    data = tmp_path / "data"
    with running_broker(data) as broker:
        publish(broker)
        broker.kill()
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in data.glob("brokers/*/journal/*.journal"):
        path.rename(kept / path.name)
    ended = refused_journal(data)
    assert ".journal is damaged at byte 0: the file is missing" in ended
    for path in kept.iterdir():
        path.rename(data / "brokers" / "broker-1" / "journal" / path.name)
    with running_broker(data) as broker:
        assert stored(broker) == MESSAGES


def refused_journal(data: Path) -> str:
    """Start a broker that claims the fence before it finds the damage, so it adds a file."""
    ended = subprocess.run(
        [*BROKER_COMMAND, *FREE_PORTS, "--data-dir", str(data)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_SECONDS_MAX,
    )
    assert ended.returncode == 1
    return ended.stderr
