"""`tidewire metadata` against a broker in a separate process, and on folders of stopped brokers."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from storage.files import DiskFiles, ReadOnlyFiles
from storage.metadata.inspection import inspect
from storage.metadata.records import FeatureLevel
from storage.metadata.store import Record
from tests.support.etcd import running_etcd
from tests.support.metadata_folders import (
    LARGE,
    aborted,
    append,
    contents,
    make_folder,
    next_revision,
    small,
    unfinished,
)
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.cli.conftest import CommandLine
from tidewire.cli.app import app

DISK = DiskFiles()
END_SECONDS_MAX = 120
"""Ends a command that hangs, so that its test fails. No run that goes on comes near it, on a busy machine either."""


class FolderCommands:
    """Runs `tidewire metadata ... --data-dir DIR` in this process, and checks that it does not change the folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["metadata", *arguments, "--data-dir", str(self.data_dir)])

    def well(self, *arguments: str, note: str = "") -> str:
        before = contents(self.data_dir)
        result = self(*arguments)
        assert contents(self.data_dir) == before
        assert result.exit_code == 0, result.output
        assert (note in result.stderr) if note else not result.stderr
        assert result.stderr.count("\n") <= 1
        return result.stdout

    def complaint(self, *arguments: str, status: int = 1) -> str:
        result = self(*arguments)
        assert result.exit_code == status, result.output
        return one_sentence(result.stderr)


def one_sentence(stderr: str) -> str:
    assert stderr.startswith("tidewire metadata: ")
    assert stderr.endswith(".\n")
    assert stderr.count("\n") == 1
    return stderr


def parsed(stdout: str) -> list[Any]:
    return [json.loads(line) for line in stdout.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> FolderCommands:
    """The folder of a stopped broker."""
    make_folder(tmp_path / "data")
    return FolderCommands(tmp_path / "data")


@contextmanager
def watching(broker: RunningBroker, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tidewire metadata watch` as a process. It is killed if it does not end in time."""
    command = [sys.executable, "-m", "tidewire.cli", "metadata", "watch", *arguments, "--http", str(broker.http)]
    # Such as most users have: where Python buffers what goes into a pipe.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    guard = threading.Timer(END_SECONDS_MAX, process.kill)
    guard.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        guard.cancel()


def next_line(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


# -- a running broker


def test_a_running_brokers_records_are_dumped_and_got(tidewire: CommandLine, topic: str) -> None:
    key = "/topics/" + topic.removeprefix("topic://")
    records = parsed(tidewire.well("metadata", "dump"))
    assert [record["key"] for record in records] == sorted(record["key"] for record in records)
    (record,) = [record for record in records if record["key"] == key]
    assert record["value"]["epoch"] == 0
    assert parsed(tidewire.well("metadata", "get", key)) == [record]
    assert parsed(tidewire.well("metadata", "dump", "--prefix", key)) == [record]
    tidewire.well("topics", "create", f"{topic}-2")
    assert parsed(tidewire.well("metadata", "dump", "--prefix", key, "--limit", "1")) == [record]


def test_the_address_may_be_given(tidewire: CommandLine, topic: str) -> None:
    """E22: the test reads one topic's record, because the broker writes others at any time, such as loads."""
    dump = ("metadata", "dump", "--prefix", "/topics/" + topic.removeprefix("topic://"))
    own = tidewire.well(*dump)
    assert own
    for address in (str(tidewire.broker.http), tidewire.broker.http_url):
        assert tidewire.well(*dump, "--http", address) == own


def test_an_index_is_queried(tidewire: CommandLine) -> None:
    """M9: the broker's transactions use one."""
    transaction = tidewire.well("transactions", "begin").strip()
    found = parsed(tidewire.well("metadata", "get", "--index", "txn-by-deadline"))
    assert [hit["index_key"] for hit in found] == sorted(hit["index_key"] for hit in found)
    coordinator, number = map(int, transaction.split(":"))
    # The high bits of a transaction's id say by which protocol it was begun; its record is named by the others.
    mine = [hit for hit in found if hit["key"] == f"/txn/id/{coordinator}_{number % 2**62}"]
    assert len(mine) == 1
    bounds = ("--from", mine[0]["index_key"], "--to", mine[0]["index_key"] + "0")
    assert mine[0] in parsed(tidewire.well("metadata", "get", "--index", "txn-by-deadline", *bounds))
    assert tidewire.well("metadata", "get", "--index", "txn-by-deadline", "--to", "0") == ""
    tidewire.well("transactions", "abort", "--yes", transaction)


def test_a_record_that_is_not_there(tidewire: CommandLine) -> None:
    assert tidewire.complaint("metadata", "get", "/nowhere") == "tidewire metadata: There is no record '/nowhere'.\n"


def test_changes_are_told_as_they_happen_until_ctrl_c(tidewire: CommandLine) -> None:
    """M14: it prints the existing records, then each change at once, also through a pipe."""
    tidewire.well("topics", "create", "topic://public/watched/a")
    with watching(tidewire.broker, "/topics/public/watched/") as process:
        assert next_line(process)["key"] == "/topics/public/watched/a"
        assert next_line(process)["event"] == "listed"
        tidewire.well("topics", "create", "topic://public/watched/b")
        told = next_line(process)
        assert (told["event"], told["key"]) == ("written", "/topics/public/watched/b")
        tidewire.well("topics", "delete", "--yes", "topic://public/watched/b")
        while told["event"] != "deleted":
            told = next_line(process)
        assert told["key"] == "/topics/public/watched/b"
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stderr is not None
        assert (process.stdout.read(), process.stderr.read()) == (b"", b"")
        assert process.wait(END_SECONDS_MAX) == 130


def test_a_watch_whose_reader_has_enough_ends_well(tidewire: CommandLine) -> None:
    tidewire.well("topics", "create", "topic://public/enough/a")
    with watching(tidewire.broker, "/topics/public/enough/") as process:
        next_line(process)
        next_line(process)
        assert process.stdout is not None
        process.stdout.close()
        tidewire.well("topics", "create", "topic://public/enough/b")
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(END_SECONDS_MAX) == 0


@pytest.mark.parametrize("kill", [True, False])
def test_a_watch_whose_broker_ends_says_so(tmp_path: Path, kill: bool) -> None:
    with running_broker(tmp_path / "data") as broker, watching(broker) as process:
        while next_line(process)["event"] != "listed":
            pass
        if kill:
            broker.kill()
        else:
            broker.stop()
        assert process.stderr is not None
        assert process.wait(END_SECONDS_MAX) == 1
        assert str(broker.http) in one_sentence(process.stderr.read().decode())


def test_a_snapshot_of_a_running_broker(tmp_path: Path) -> None:
    """When the command reports it, the snapshot is there and the log before it is gone."""
    with running_broker(tmp_path / "data") as broker:
        tidewire = CommandLine(broker)
        tidewire.well("topics", "create", "topic://public/default/a")
        assert broker.http_url in tidewire.well("metadata", "snapshot")
        (snapshot,) = (tmp_path / "data" / "metadata").glob("*-*.snapshot")
        (log,) = (tmp_path / "data" / "metadata").glob("*.log")
        assert int(log.stem[:20]) == int(snapshot.stem[:20]) + 1
        tidewire.well("topics", "create", "topic://public/default/b")
        told = json.loads(tidewire.well("metadata", "snapshot", "--json"))
        newest = max((tmp_path / "data" / "metadata").glob("*-*.snapshot"))
        assert told["sizeBytes"] == newest.stat().st_size
        assert told["sequence"] == int(newest.stem[:20])
        broker.kill()
        folder = FolderCommands(tmp_path / "data")
        assert len(parsed(folder.well("dump", "--prefix", "/topics/"))) == 2
        assert "all whole" in folder.well("verify")
        broker.restart()
        assert len(parsed(tidewire.well("metadata", "dump", "--prefix", "/topics/"))) == 2


def test_a_folder_in_use_is_left_to_its_broker(tidewire: CommandLine) -> None:
    folder = FolderCommands(tidewire.broker.data_dir)
    for command in (("dump",), ("dump", "--log"), ("get", "/a"), ("verify",), ("snapshot",)):
        complaint = folder.complaint(*command)
        assert "running broker" in complaint
        assert "--http" in complaint


def test_a_killed_brokers_folder_is_read_as_it_is(tmp_path: Path) -> None:
    """M23: answered writes are there, and afterwards the broker starts from the same bytes."""
    with running_broker(tmp_path / "data") as broker:
        tidewire = CommandLine(broker)
        tidewire.well("topics", "create", "topic://public/default/a", "--segments", "3")
        running = parsed(tidewire.well("metadata", "dump", "--prefix", "/topics/"))
        broker.kill()
        folder = FolderCommands(tmp_path / "data")
        assert parsed(folder.well("dump", "--prefix", "/topics/")) == running
        assert "all whole" in folder.well("verify")
        broker.restart()
        assert parsed(tidewire.well("metadata", "dump", "--prefix", "/topics/")) == running


def test_a_broker_on_etcd_is_asked_the_same_way(tmp_path: Path) -> None:
    """M21: only snapshots are left to etcd; the broker's folder says where its metadata is."""
    with (
        running_etcd(tmp_path / "etcd") as etcd,
        running_broker(tmp_path / "data", "--metadata", f"etcd://{etcd.endpoint}") as broker,
    ):
        tidewire = CommandLine(broker)
        tidewire.well("topics", "create", "topic://public/default/a")
        (record,) = parsed(tidewire.well("metadata", "dump", "--prefix", "/topics/"))
        assert parsed(tidewire.well("metadata", "get", record["key"])) == [record]
        with watching(broker, "/topics/") as process:
            assert next_line(process)["key"] == record["key"]
            assert next_line(process)["event"] == "listed"
            tidewire.well("topics", "create", "topic://public/default/b")
            told = next_line(process)
            assert (told["event"], told["key"]) == ("written", "/topics/public/default/b")
        assert "takes no snapshots" in tidewire.complaint("metadata", "snapshot")
        for command in (("dump",), ("verify",), ("snapshot",)):
            assert "--http" in FolderCommands(broker.data_dir).complaint(*command, status=2)


# -- a stopped broker's folder


def test_a_folders_records_are_dumped_and_got(folder: FolderCommands) -> None:
    records = parsed(folder.well("dump"))
    assert len(records) == 7 + LARGE
    assert [record["key"] for record in records] == sorted(record["key"] for record in records)
    assert parsed(folder.well("get", "/n/3")) == [
        {
            "key": "/n/3",
            "version": 4,
            "value": {"n": 3},
            "indexes": [{"name": "odd", "key": "1"}],
            "partition_key": None,
            "session": None,
        }
    ]
    assert [record["key"] for record in parsed(folder.well("dump", "--prefix", "/n/", "--limit", "2"))] == [
        "/n/0",
        "/n/1",
    ]
    assert "'/n/5'" in folder.complaint("get", "/n/5")
    hits = parsed(folder.well("get", "--index", "odd", "--from", "1"))
    assert [(hit["index_key"], hit["key"]) for hit in hits] == [("1", "/n/1"), ("1", "/n/3"), ("1", "/n/7")]


def test_several_may_look_at_a_folder_at_a_time(folder: FolderCommands) -> None:
    with inspect(ReadOnlyFiles(), folder.data_dir):
        assert len(parsed(folder.well("dump"))) == 7 + LARGE
        assert "running broker" in folder.complaint("snapshot")


def test_partial_transactions_are_hidden_or_marked(folder: FolderCommands) -> None:
    """R24: the log ends in an unfinished transaction, and contains an aborted one."""
    revision = next_revision(DISK, folder.data_dir)
    append(
        DISK,
        folder.data_dir,
        aborted(revision),
        small([Record("/between", b"", revision)]),
        unfinished(revision + 1),
    )
    assert "/partial/" not in folder.well("dump", note="unfinished transaction")
    shown = parsed(folder.well("dump", "--log", note="--partial"))
    assert not any("partial" in line for line in shown)
    assert not any(line.get("key", "").startswith("/partial/") for line in shown)
    keys = [line["key"] for line in shown if line.get("type") == "put"]
    assert [key for key in keys if key.startswith("/n/")] == [f"/n/{number}" for number in range(8)]
    assert len(keys) == 8 + LARGE + 1
    everything = parsed(folder.well("dump", "--log", "--partial"))
    marked = [line for line in everything if "partial" in line]
    assert [line for line in everything if "partial" not in line] == shown
    assert {line["partial"] for line in marked} == {"aborted", "unfinished"}
    assert all(line["key"].startswith("/partial/") for line in marked if line["type"] == "put")
    assert [line["type"] for line in marked if line["type"] != "put"] == [
        "begin_transaction",
        "abort_transaction",
        "begin_transaction",
    ]
    assert "unfinished transaction" in folder.well("verify")


def test_the_log_is_shown_with_its_places(folder: FolderCommands) -> None:
    lines = parsed(folder.well("dump", "--log"))
    batches = [line for line in lines if "offset" in line]
    assert [batch["batch"] for batch in batches] == list(range(1, len(batches) + 1))
    for batch in batches:
        path = folder.data_dir / "metadata" / batch["file"]
        assert path.read_bytes()[batch["offset"] :].startswith(b"TWM1")
        records = [line for line in lines if line["batch"] == batch["batch"] and "record" in line]
        assert [record["record"] for record in records] == list(range(batch["records"]))
    types = {line["type"] for line in lines if "type" in line}
    assert types == {"feature_level", "take_over", "put", "delete", "begin_transaction", "end_transaction"}


def test_a_whole_folder_is_verified(folder: FolderCommands) -> None:
    (line, summary) = folder.well("verify").splitlines()
    assert line.startswith("whole    00000000000000000001-0000000001.log  ")
    assert "1 committed transaction" in line
    assert summary == f"1 file in {folder.data_dir / 'metadata'}, all whole"
    document = json.loads(folder.well("verify", "--json"))
    (report,) = document.pop("files")
    assert document == {"folder": str(folder.data_dir / "metadata"), "whole": True}
    assert (report["kind"], report["whole"], report["committed"]) == ("log", True, 1)


def test_damage_is_told_with_file_and_place(folder: FolderCommands) -> None:
    """D9: every command reports it, with an exit status."""
    lines = parsed(folder.well("dump", "--log"))
    offset = [line["offset"] for line in lines if "offset" in line][4]
    (path,) = (folder.data_dir / "metadata").glob("*.log")
    content = bytearray(path.read_bytes())
    content[offset + 44] ^= 1
    path.write_bytes(content)
    result = folder("verify")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"damaged  {path.name}  at byte {offset}: ")
    assert "1 of 1 file" in one_sentence(result.stderr)
    document = json.loads(folder("verify", "--json").stdout)
    assert document["whole"] is False
    (report,) = document["files"]
    assert (report["file"], report["whole"], report["offset"]) == (str(path), False, offset)
    for command in (("dump",), ("get", "/a"), ("snapshot",)):
        assert f"{path}: damaged at byte {offset}" in folder.complaint(*command)
    result = folder("dump", "--log")
    assert result.exit_code == 1
    assert [line["batch"] for line in parsed(result.stdout) if "offset" in line] == [1, 2, 3, 4]
    assert f"byte {offset}" in one_sentence(result.stderr)


def test_a_snapshot_for_another_release(folder: FolderCommands) -> None:
    """R26: no marker of the transactions is left, and none of their writes is lost; the way back works, too."""
    before = folder.well("dump")
    result = folder("snapshot", "--feature-level", "1")
    assert result.exit_code == 0, result.output
    assert "feature level 1" in result.stdout
    assert folder.well("dump") == before
    assert folder.well("dump", "--log") == ""
    assert len(folder.well("verify").splitlines()) == 3
    assert "feature level 2" in folder("snapshot", "--feature-level", "2").stdout
    assert folder.well("dump") == before
    assert "wrote " in folder("snapshot").stdout
    told = json.loads(folder("snapshot", "--json").stdout)
    assert told["sizeBytes"] == Path(told["path"]).stat().st_size
    assert told["featureLevel"] == 3
    for level in ("0", "9"):
        assert f"feature level {level}" in folder.complaint("snapshot", "--feature-level", level, status=2)


def test_a_log_of_a_later_release_is_told(folder: FolderCommands) -> None:
    """R25: the rest of the log cannot be read, so nothing is shown as if it were complete."""
    revision = next_revision(DISK, folder.data_dir)
    append(DISK, folder.data_dir, small([FeatureLevel(revision - 1, 9)]))
    assert "feature level 9" in folder.complaint("dump")


# -- mistakes


def test_mistakes_are_told_in_one_sentence(tidewire: CommandLine, folder: FolderCommands, tmp_path: Path) -> None:
    data = str(folder.data_dir)
    for mistake, word in (
        (("dump", "--partial"), "--log"),
        (("dump", "--log"), "--data-dir"),
        (("dump", "--log", "--prefix", "/a", "--data-dir", data), "--prefix"),
        (("dump", "--log", "--limit", "1", "--data-dir", data), "--limit"),
        (("dump", "--http", "127.0.0.1:1", "--data-dir", data), "either"),
        (("dump", "--http", "here"), "HOST:PORT"),
        (("dump", "--http", "127.0.0.1:99999"), "HOST:PORT"),
        (("dump", "--http", "pulsar://127.0.0.1:6650"), "HOST:PORT"),
        (("dump", "--http", "http://127.0.0.1:8080/admin"), "HOST:PORT"),
        (("dump", "--data-dir", str(tmp_path / "nowhere")), "nowhere"),
        (("dump", "--data-dir", str(tmp_path)), "holds no metadata"),
        (("dump", "--data-dir", __file__), "holds no metadata"),
        (("get",), "--index"),
        (("get", ""), "key"),
        (("get", "/a", "--index", "i"), "--index"),
        (("get", "/a", "--from", "b"), "--from"),
        (("get", "/a", "--limit", "1"), "--limit"),
        (("get", "--index", ""), "index"),
        (("watch", "--data-dir", data), "running"),
        (("verify",), "--data-dir"),
        (("verify", "--http", "127.0.0.1:1"), "--data-dir"),
        (("snapshot", "--feature-level", "1"), "--data-dir"),
        (("snapshot", "--http", "127.0.0.1:1", "--data-dir", data), "either"),
        (("snapshot", "--data-dir", str(tmp_path / "nowhere")), "nowhere"),
    ):
        assert word in one_sentence(tidewire.complaint("metadata", *mistake, status=2)), mistake
    assert not (tmp_path / "nowhere").exists()


def test_a_broker_that_is_not_there_is_named(tidewire: CommandLine) -> None:
    for command in (("dump",), ("get", "/a"), ("watch",), ("snapshot",)):
        complaint = tidewire.complaint("metadata", *command, "--http", "127.0.0.1:1")
        assert complaint.startswith("tidewire metadata: No broker answered at http://127.0.0.1:1: ")


def test_an_answer_that_is_no_tidewires_is_told(tidewire: CommandLine) -> None:
    complaint = tidewire.complaint("metadata", "dump", "--http", str(tidewire.broker.pulsar))
    assert f"What listens at http://{tidewire.broker.pulsar} does not speak HTTP." in complaint


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_a_folder_that_may_not_be_read(folder: FolderCommands) -> None:
    (path,) = (folder.data_dir / "metadata").glob("*.log")
    path.chmod(0)
    assert str(path) in folder.complaint("dump")
