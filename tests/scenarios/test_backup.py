"""Backups of a broker under load, restored: nothing acknowledged is missing, and no transaction is half there.

Each transaction writes to two topics whose segments split and merge meanwhile. The broker is never asked to pause.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest
import trio

import tidewire
from storage.backup.copying import copy_cut, read_manifest
from storage.backup.manifest import MANIFEST
from storage.files import DiskFiles
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tidewire.testing.transactions import abort_open_transactions

COMMAND_SECONDS_MAX: Final = 100.0
PARTS: Final = 3
"""Messages of a transaction on each topic."""
WORKERS: Final = 4
END: Final = "end"
ENDS: Final = 100


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tidewire.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS_MAX,
        check=False,
    )


def back_up(broker: RunningBroker, to: Path, *flags: str) -> None:
    done = command("backup", to, "--http", broker.http_url, *flags)
    assert done.returncode == 0, done.stderr
    assert not (broker.data_dir / "backup-cut").exists()


def restore(backup: Path, data_dir: Path) -> None:
    done = command("restore", backup, "--data-dir", data_dir)
    assert done.returncode == 0, done.stderr


def refusal_of(*arguments: str | Path) -> str:
    done = command(*arguments)
    assert done.returncode == 1, done
    return done.stderr.strip()


@dataclass
class Load:
    """Writers of transactions and of plain messages, and what they know of them."""

    topics: tuple[str, str]
    committed: set[str] = field(default_factory=set)
    """Transactions whose commit was answered."""
    aborted: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)
    """Plain messages that were acknowledged."""
    progress: trio.Event = field(default_factory=trio.Event)

    async def work(self, client: tidewire.Client, worker: int) -> None:
        async with client.producer(self.topics[0]) as first, client.producer(self.topics[1]) as second:
            number = 0
            while True:
                name = f"{worker}-{number}"
                number += 1
                txn = await client.new_transaction()
                for part in range(PARTS):
                    await first.send(f"t.{name}".encode(), key=f"{name}{part}", txn=txn)
                    await second.send(f"t.{name}".encode(), key=f"{name}{part}", txn=txn)
                if number % 5:
                    await txn.commit()
                    self.committed.add(name)
                else:
                    await txn.abort()
                    self.aborted.add(name)
                await first.send(f"p.{name}".encode(), key=name)
                self.plain.add(name)
                self.progress.set()

    async def more(self, transactions: int) -> None:
        """Wait for so many further commits."""
        wanted = len(self.committed) + transactions
        while len(self.committed) < wanted:
            self.progress = trio.Event()
            await self.progress.wait()


@asynccontextmanager
async def working(broker: RunningBroker, load: Load) -> AsyncIterator[None]:
    async with tidewire.connect(broker.service_url) as client, trio.open_nursery() as nursery:
        for worker in range(WORKERS):
            nursery.start_soon(load.work, client, worker)
        yield
        nursery.cancel_scope.cancel()


async def read_all(broker: RunningBroker, topic: str) -> list[str]:
    """Return all that is visible, in the order of each segment."""
    values: list[str] = []
    async with tidewire.connect(broker.service_url) as client:
        # One at least goes to each segment, behind everything else there.
        async with client.producer(topic) as producer:
            for number in range(ENDS):
                await producer.send(END.encode(), key=str(number))
        async with client.reader(topic, start="earliest") as reader:
            ends = 0
            while ends < ENDS:
                value = (await reader.receive()).value.decode()
                ends += value == END
                values.append(value)
    return [value for value in values if value != END]


async def judge(broker: RunningBroker, load: Load, before: tuple[set[str], set[str]]) -> None:
    """Check what a restored broker shows. `before` is what was committed and acknowledged when the backup began."""
    await trio.to_thread.run_sync(abort_open_transactions, broker.http_url, broker.service_url)
    found = [await read_all(broker, topic) for topic in load.topics]
    counts = [{name: values.count(name) for name in set(values)} for values in found]
    transactions = {name for each in counts for name in each if name.startswith("t.")}
    for name in transactions:
        assert [each.get(name, 0) for each in counts] == [PARTS, PARTS], f"{name} is half there"
    assert {f"t.{name}" for name in before[0]} <= transactions
    assert not {f"t.{name}" for name in load.aborted} & transactions
    assert {f"p.{name}" for name in before[1]} <= counts[0].keys()
    assert max(counts[0].values()) == PARTS


@pytest.mark.timeout(400)
async def test_backups_of_a_broker_that_writes_and_splits_are_whole(tmp_path: Path) -> None:
    """E1, E3: each of three backups becomes a broker that shows everything, and goes on."""
    with running_broker(tmp_path / "data") as broker:
        admin = Admin(broker.http_url)
        load = Load((admin.new_topic(segments=1), admin.new_topic(segments=2)))
        begun = []
        async with working(broker, load), trio.open_nursery() as nursery:
            for number in range(3):
                await load.more(5)
                nursery.start_soon(admin.split, load.topics[1], admin.active_segments(load.topics[1])[0])
                begun.append((set(load.committed), set(load.plain)))
                await trio.to_thread.run_sync(back_up, broker, tmp_path / f"backup-{number}")
        # What is appended later, and other ids, do not matter.
        assert len(load.committed) > len(begun[-1][0])
    for number, before in enumerate(begun):
        folder = tmp_path / f"restored-{number}"
        restore(tmp_path / f"backup-{number}", folder)
        with running_broker(folder) as restored:
            await judge(restored, load, before)
            # It goes on, in ledgers that the original never had, and after a crash.
            async with tidewire.connect(restored.service_url) as client, client.producer(load.topics[0]) as producer:
                await producer.send(b"later")
            restored.restart()
            async with tidewire.connect(restored.service_url) as client, client.reader(load.topics[0]) as reader:
                while (await reader.receive()).value != b"later":
                    pass


async def test_a_killed_broker_restores_from_the_backup_made_before(tmp_path: Path) -> None:
    """E1: its folder is gone. The backup has what was acknowledged, and the cursor of a subscription."""
    with running_broker(tmp_path / "data") as broker:
        topic = Admin(broker.http_url).new_topic()
        async with (
            tidewire.connect(broker.service_url) as client,
            client.producer(topic) as producer,
            client.queue_consumer(topic, "sub") as consumer,
        ):
            for number in range(10):
                await producer.send(str(number).encode())
            for _number in range(4):
                await consumer.acknowledge(await consumer.receive())
        back_up(broker, tmp_path / "backup")
        broker.kill()
        shutil.rmtree(broker.data_dir)
    restore(tmp_path / "backup", tmp_path / "data")
    with running_broker(tmp_path / "data") as restored:
        async with tidewire.connect(restored.service_url) as client, client.queue_consumer(topic, "sub") as consumer:
            assert [(await consumer.receive()).value for _ in range(6)] == [str(n).encode() for n in range(4, 10)]


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Return a backup of a broker with a topic."""
    with running_broker(tmp_path / "original") as broker:
        topic = Admin(broker.http_url).create("topic://public/default/kept")

        async def send() -> None:
            async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
                await producer.send(b"kept")

        trio.run(send)
        back_up(broker, tmp_path / "backup")
    return tmp_path / "backup"


def files_of(backup: Path) -> list[str]:
    return [each[0] for each in json.loads((backup / MANIFEST).read_bytes())["files"] if each[1]]


def test_every_damaged_or_missing_file_is_named(backup: Path, tmp_path: Path) -> None:
    """E3: nothing is made then."""
    for name in [*files_of(backup), MANIFEST]:
        path = backup / name
        whole = path.read_bytes()
        path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
        assert str(path) in refusal_of("restore", backup, "--data-dir", tmp_path / "new")
        path.write_bytes(whole[: len(whole) // 2])
        assert str(path) in refusal_of("restore", backup, "--data-dir", tmp_path / "new")
        path.unlink()
        assert str(path) in refusal_of("restore", backup, "--data-dir", tmp_path / "new")
        path.write_bytes(whole)
        assert not (tmp_path / "new").exists()
    restore(backup, tmp_path / "new")


def test_programs_get_documents(backup: Path, tmp_path: Path) -> None:
    """Part 9: `--json` prints one document, and nothing else."""
    restored = command("restore", backup, "--data-dir", tmp_path / "new", "--json")
    assert json.loads(restored.stdout) == {"dataDir": str(tmp_path / "new"), "backup": str(backup)}
    with running_broker(tmp_path / "new") as broker:
        made = command("backup", tmp_path / "second", "--http", broker.http_url, "--json")
    assert (made.returncode, made.stderr) == (0, "")
    manifest = read_manifest(DiskFiles(), tmp_path / "second")
    assert json.loads(made.stdout) == {
        "folder": str(tmp_path / "second"),
        "files": len(manifest.files),
        "sizeBytes": sum(each.length for each in manifest.files),
        "of": str(broker.data_dir),
    }


def test_a_folder_with_files_is_refused(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    said = refusal_of("restore", backup, "--data-dir", tmp_path / "full")
    assert (
        said == f"tidewire restore: {tmp_path / 'full'} is not empty. Choose a folder that is empty or does not exist."
    )
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    file = tmp_path / "full" / "mine"
    is_file = f"{file} is a file. Choose a folder that is empty or does not exist."
    assert refusal_of("restore", backup, "--data-dir", file) == f"tidewire restore: {is_file}"
    assert refusal_of("backup", file) == f"tidewire backup: {is_file}"
    with running_broker(tmp_path / "data") as broker:
        said = refusal_of("backup", tmp_path / "full", "--http", broker.http_url)
        assert said.startswith(f"tidewire backup: {tmp_path / 'full'} is not empty.")
        said = refusal_of("backup", file / "monday", "--http", broker.http_url)
        assert said.startswith(
            f"tidewire backup: The backup is not complete: {file / 'monday'}: Not a directory. Remove "
        )
        assert not (broker.data_dir / "backup-cut").exists()


def test_a_backup_into_the_data_folder_is_refused(tmp_path: Path) -> None:
    """It would go with the folder, and the doctor would find files that nobody knows."""
    with running_broker(tmp_path / "data") as broker:
        inside = broker.data_dir / "backups" / "monday"
        said = refusal_of("backup", inside, "--http", broker.http_url)
        assert said == (
            f"tidewire backup: {inside} is inside the broker's data folder {broker.data_dir}. "
            "Choose a folder elsewhere."
        )
        assert not (broker.data_dir / "backups").exists()
        assert not (broker.data_dir / "backup-cut").exists()


def test_a_broker_does_not_start_on_a_backup(backup: Path) -> None:
    """E1: the backup stays as it is, and the message names the command that is meant."""
    before = {path: (backup / path).read_bytes() for path in [*files_of(backup), MANIFEST]}
    said = refusal_of("broker", "--data-dir", backup, "--pulsar", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert said == (
        f"tidewire broker: {backup} is a backup. Make a data folder from it with "
        f"`tidewire restore {backup} --data-dir NEW`."
    )
    assert {path: (backup / path).read_bytes() for path in before} == before
    assert read_manifest(DiskFiles(), backup).files


def test_parts_of_the_original_and_of_the_restored_folder_do_not_mix(backup: Path, tmp_path: Path) -> None:
    """E1: a broker refuses them, and names both identities."""
    restore(backup, tmp_path / "new")
    original = json.loads((tmp_path / "original" / "identity.json").read_bytes())
    new = json.loads((tmp_path / "new" / "identity.json").read_bytes())
    assert not {original["folder"], original["cluster"]} & {new["folder"], new["cluster"]}
    shutil.rmtree(tmp_path / "original" / "metadata")
    shutil.copytree(tmp_path / "new" / "metadata", tmp_path / "original" / "metadata")
    done = command("broker", "--data-dir", tmp_path / "original", "--pulsar", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode == 1
    assert original["cluster"] in done.stderr
    assert new["cluster"] in done.stderr


async def test_a_cut_outlives_its_broker_and_a_killed_backup(tmp_path: Path) -> None:
    """What a backup that was killed left is not removed unasked, and the next backup says so."""
    topics = ("persistent://public/default/plain", "topic://public/default/scalable")
    with running_broker(tmp_path / "data") as broker:
        Admin(broker.http_url).create(topics[1])
        for text in ("before", "after"):
            async with tidewire.connect(broker.service_url) as client:
                for topic in topics:
                    async with client.producer(topic) as producer:
                        await producer.send(text.encode())
            if text == "before":
                with closing(HTTPConnection(str(broker.http))) as connection:
                    connection.request("POST", "/admin/v2/backup")
                    cut = Path(json.loads(connection.getresponse().read())["folder"])
                broker.restart()
        said = refusal_of("backup", tmp_path / "refused", "--http", broker.http_url)
        assert said.startswith(f"tidewire backup: {cut} is there: another backup is running, or one was killed.")
        files = DiskFiles()
        copy_cut(files, cut, tmp_path / "backup", read_manifest(files, cut), lambda _size_bytes: None)
        back_up(broker, tmp_path / "next", "--replace")
    for backup, expected in (("backup", [b"before"]), ("next", [b"before", b"after"])):
        folder = tmp_path / f"{backup}-restored"
        restore(tmp_path / backup, folder)
        with running_broker(folder) as restored:
            async with tidewire.connect(restored.service_url) as client:
                for topic in topics:
                    async with client.reader(topic) as reader:
                        assert [(await reader.receive()).value for _ in expected] == expected


def test_a_backup_without_space_says_so(tmp_path: Path) -> None:
    """E13: it leaves nothing in the data folder, and no backup."""
    with running_broker(tmp_path / "data") as broker:
        limited = (
            f"ulimit -f 1; exec {sys.executable} -m tidewire.cli backup {tmp_path / 'backup'} --http {broker.http}"
        )
        done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)
        assert done.returncode == 1, done
        assert done.stderr.startswith("tidewire backup: The backup is not complete: ")
        assert not (broker.data_dir / "backup-cut").exists()
        assert f"{MANIFEST} is missing" in refusal_of("restore", tmp_path / "backup", "--data-dir", tmp_path / "new")
