"""Commands end although their disk never answers. A pipe without a writer is such a disk."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.identity import IDENTITY_FILE
from tidewire.cli.cluster import silent_disk
from tidewire.cli.cluster.addresses import HTTP_VARIABLE, addresses
from tidewire.cli.cluster.doctor import examined
from tidewire.cli.cluster.silent_disk import OPERATION_SECONDS_MAX, Operation, SilentDisk, seconds_left
from tidewire.cli.endings import CommandFailed


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """Let every reader of this path wait until the block ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    try:
        yield
    finally:
        # A reader that waits goes on, and reads the end.
        os.close(os.open(path, os.O_RDWR))


def test_each_operation_has_the_whole_time() -> None:
    """E11: a large folder takes long to read, although its disk answers."""
    operation = Operation(Path("/data"), began=100)
    assert seconds_left(operation, 100) == seconds_left(None, 1000) == OPERATION_SECONDS_MAX
    assert seconds_left(operation, 101) == OPERATION_SECONDS_MAX - 1
    assert seconds_left(operation, 100 + OPERATION_SECONDS_MAX) == 0


def test_work_on_a_disk_that_answers_ends_as_it_does() -> None:
    disk = SilentDisk()
    assert disk.run(lambda: "result") == "result"
    with pytest.raises(ZeroDivisionError):
        disk.run(lambda: 1 / 0)


def test_a_folder_that_never_answers_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: the doctor examines it, because no broker answers. It waited for ever."""
    monkeypatch.setattr(silent_disk, "OPERATION_SECONDS_MAX", 0.1)
    with (
        silent(tmp_path / IDENTITY_FILE),
        pytest.raises(CommandFailed, match=f"^{re.escape(str(tmp_path))}.* does not answer: .* for 0.1 seconds"),
    ):
        examined(["127.0.0.1:1"], tmp_path)


def test_a_cluster_whose_addresses_never_come_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: each command that asks a broker reads them there, unless it was given one."""
    monkeypatch.delenv(HTTP_VARIABLE, raising=False)
    monkeypatch.setattr(silent_disk, "OPERATION_SECONDS_MAX", 0.1)
    with silent(tmp_path / "cluster" / "cluster.json"):
        with pytest.raises(CommandFailed, match=f"^{re.escape(str(tmp_path / 'cluster'))} does not answer"):
            addresses(tmp_path, None)
        assert addresses(tmp_path, "127.0.0.1:7") == ["127.0.0.1:7"]
