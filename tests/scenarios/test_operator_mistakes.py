"""`tidewire broker` as a process, started wrongly: an exit status and exactly one clear sentence, no traceback."""

import socket
import subprocess
from pathlib import Path

import pytest

from storage.journal_block import LABEL_SIZE
from tests.support.processes import BROKER_COMMAND, FREE_PORTS, RunningBroker, running_broker
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.building import build_payload
from tidewire.wire.pulsar.frames import FrameDecoder, encode_command, encode_payload_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

END_SECONDS_MAX = 120
MISTAKE, FAILED = 2, 1
"""Exit statuses: of settings that cannot be used, and of a start that did not succeed."""


def start_wrongly(*arguments: str, cwd: Path) -> tuple[int, str]:
    """Return its exit status and its only sentence; it must print nothing else."""
    ended = subprocess.run(
        [*BROKER_COMMAND, *FREE_PORTS, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=END_SECONDS_MAX,
        cwd=cwd,
    )
    assert ended.stdout == "", "it never said that it is ready"
    (line,) = ended.stderr.splitlines()
    assert line.startswith("tidewire broker: ")
    assert line.endswith((".", "?"))
    return ended.returncode, line


def publish(broker: RunningBroker, count: int) -> None:
    """Publish the messages one after the other, each durable before the next."""
    decoder = FrameDecoder()
    payload = build_payload(pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"x" * 2000)
    frames = [commands.connect("test"), commands.producer("persistent://public/default/plain", 1, 1)]
    sent = [encode_command(frame) for frame in frames]
    sent += [encode_payload_command(commands.send(1, number), payload) for number in range(count)]
    with socket.create_connection(broker.pulsar) as connection:
        for data in sent:
            connection.sendall(data)
            while (frame := decoder.next_frame()) is None:
                received = connection.recv(4096)
                assert received
                decoder.feed(received)
            assert frame.command.type not in (pb.BaseCommand.ERROR, pb.BaseCommand.SEND_ERROR)


@pytest.fixture
def stopped(tmp_path: Path) -> RunningBroker:
    """Leave a killed broker's folder `tmp_path / "data"`, so that its journal and log must be recovered."""
    with running_broker(tmp_path / "data") as broker:
        with socket.create_connection(broker.http) as connection:
            connection.sendall(
                b"PUT /admin/v2/scalable/public/default/x?numInitialSegments=2 HTTP/1.1\r\n"
                b"Host: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            assert b" 204 " in connection.recv(1000)
        publish(broker, 3)
        broker.kill()
    return broker


def test_a_data_folder_in_use(tmp_path: Path) -> None:
    """Invariant 7: the broker that runs there is not disturbed."""
    with running_broker(tmp_path / "data") as broker:
        status, sentence = start_wrongly("--data-dir", str(broker.data_dir), cwd=tmp_path)
        assert status == FAILED
        assert "already uses the data folder" in sentence
        assert str(broker.data_dir) in sentence


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """The broker notices it before it touches any file."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        for flag in ("--pulsar", "--http", "--kafka"):
            status, sentence = start_wrongly("--data-dir", "data", flag, address, cwd=tmp_path)
            assert status == FAILED
            assert f"already listens on {address}" in sentence
            assert f"another port with {flag} (" in sentence
            # Of the three, only this one can be left out.
            assert ("--kafka none" in sentence) == (flag == "--kafka")
    assert not (tmp_path / "data").exists()


def test_a_data_dir_that_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("mine")
    for folder in (path, path / "below"):
        status, sentence = start_wrongly("--data-dir", str(folder), cwd=tmp_path)
        assert status == FAILED
        assert sentence == (f"tidewire broker: Cannot use {path} as a folder: it is a file. Choose another --data-dir.")
    assert path.read_text() == "mine"


def test_two_listeners_at_one_address(tmp_path: Path) -> None:
    """It is no other process that takes the port."""
    same = ("--http", "127.0.0.1:6651", "--kafka", "127.0.0.1:6651")
    assert start_wrongly(*same, cwd=tmp_path) == (
        MISTAKE,
        "tidewire broker: --http and --kafka cannot both be 127.0.0.1:6651. Give each its own port.",
    )


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    address = "192.0.2.1:6650"  # of a network that no machine has (RFC 5737)
    status, sentence = start_wrongly("--pulsar", address, "--allow-unauthenticated", cwd=tmp_path)
    assert status == FAILED
    assert sentence == (
        f"tidewire broker: Cannot listen on {address}: this machine has no such address. Choose another address with "
        "--pulsar."
    )


def test_a_listener_that_others_can_reach(tmp_path: Path) -> None:
    """It is refused unless it is allowed by name."""
    status, sentence = start_wrongly("--data-dir", "data", "--pulsar", "0.0.0.0:0", cwd=tmp_path)
    assert status == MISTAKE
    assert "--allow-unauthenticated" in sentence
    assert not (tmp_path / "data").exists()


def test_an_unknown_key_in_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('data_dri = "data"\n')
    status, sentence = start_wrongly("--config", str(config), cwd=tmp_path)
    assert status == MISTAKE
    assert str(config) in sentence
    assert "data_dri" in sentence
    assert "data_dir" in sentence.replace("data_dri", "")


@pytest.mark.parametrize("value", ["etcd://", "etcd://x", "etcd:127.0.0.1:2379", "paper"])
def test_an_ill_formed_metadata_setting(tmp_path: Path, value: str) -> None:
    status, sentence = start_wrongly("--metadata", value, cwd=tmp_path)
    assert status == MISTAKE
    assert "--metadata" in sentence
    assert "HOST:PORT" in sentence


def test_an_etcd_that_cannot_be_reached(tmp_path: Path) -> None:
    """M22: it retries as long as the setting says, and leaves nothing behind."""
    place = ("--metadata", "etcd://127.0.0.1:1", "--metadata-connect-seconds-max", "1")
    status, sentence = start_wrongly(*place, cwd=tmp_path)
    assert status == FAILED
    assert "etcd at 127.0.0.1:1 gave no answer for 1 s" in sentence
    assert not list(tmp_path.iterdir())


def test_a_damaged_metadata_log(stopped: RunningBroker, tmp_path: Path) -> None:
    """D9: it is named, and nothing is cut silently."""
    (log,) = (stopped.data_dir / "metadata").glob("*.log")
    before = log.stat().st_size
    content = bytearray(log.read_bytes())
    content[100] ^= 0xFF
    log.write_bytes(content)
    status, sentence = start_wrongly("--data-dir", str(stopped.data_dir), cwd=tmp_path)
    assert status == FAILED
    assert str(log) in sentence
    assert "damaged" in sentence
    assert log.stat().st_size == before


def test_a_damaged_journal_file(stopped: RunningBroker, tmp_path: Path) -> None:
    """D9: a block is gone, later ones are there; it is unknown which ledgers lost entries, so nothing starts."""
    journals = stopped.data_dir.glob("brokers/*/journal/*.journal")
    (journal,) = [path for path in journals if path.read_bytes()[LABEL_SIZE:].strip(b"\0")]
    with journal.open("r+b") as file:
        file.seek(LABEL_SIZE)
        file.write(bytes(512))
    status, sentence = start_wrongly("--data-dir", str(stopped.data_dir), cwd=tmp_path)
    assert status == FAILED
    assert str(journal) in sentence
    assert "damaged" in sentence
