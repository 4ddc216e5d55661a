"""Folders of an embedded store in the states that crashes and operators leave, on a real or simulated disk.

folder = make_folder(DiskFiles(), tmp_path / "data")           # records, an index, a large change set
append(DiskFiles(), tmp_path / "data", unfinished(...))        # and a state that no store leaves by itself
contents(tmp_path / "data")                                    # every file's bytes, to check that nothing changed
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from storage.files import DiskFiles, Files
from storage.metadata import transactions
from storage.metadata.batches import Body, pack
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.inspection import Inspection
from storage.metadata.opening import metadata_directory, open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import DataRecord
from storage.metadata.store import IndexEntry, Put, Record

LARGE = 500
"""Records of the one large change set, more than fit a batch."""


async def fill(files: Files, data_dir: Path, *, large: bool = True) -> None:
    """Write seven records under `/n/` with an index, delete one, and write LARGE ones under `/large/` in one step."""
    async with EmbeddedStore.open(files, data_dir) as store:
        for number in range(8):
            await store.put(f"/n/{number}", b'{"n": %d}' % number, indexes=(IndexEntry("odd", f"{number % 2}"),))
        await store.delete("/n/5")
        if large:
            await store.commit([Put(f"/large/{number:04}", b"x" * 50) for number in range(LARGE)])


def make_folder(data_dir: Path, *, large: bool = True) -> Path:
    """Call `fill` on the real disk, and return the folder with the files."""
    trio.run(lambda: fill(DiskFiles(), data_dir, large=large))
    return metadata_directory(data_dir)


def append(files: Files, data_dir: Path, *pieces: Sequence[Body]) -> None:
    """Append batches to the log, in an epoch of their own, each piece durable before the next."""
    opened = open_folder(files, metadata_directory(data_dir))
    try:
        for bodies in pieces:
            opened.log.append(bodies)
    finally:
        opened.close()


def next_revision(files: Files, data_dir: Path) -> int:
    """Return the revision of the next change set. Changes nothing."""
    return Inspection(files, metadata_directory(data_dir)).state(lambda _size: None).image.revision + 1


def large_records(revision: int, prefix: str = "/partial/") -> list[DataRecord]:
    """Return a change set that is larger than a batch."""
    return [Record(f"{prefix}{number:04}", b"y" * 50, revision) for number in range(300)]


def unfinished(revision: int) -> list[Body]:
    """Return a transaction without its last batch, and so without its end."""
    whole = [body for piece in transactions.pieces("cut", large_records(revision)) for body in piece]
    assert len(whole) > 2
    return whole[:-1]


def aborted(revision: int) -> list[Body]:
    """Return an aborted transaction."""
    return [*unfinished(revision), *transactions.abort("given up")]


def small(records: Iterable[DataRecord]) -> list[Body]:
    """Return a change set that fits into a batch."""
    return pack([[encode(record) for record in records]])


def contents(data_dir: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the modification time of every file below the folder."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(data_dir.rglob("*"))
        if path.is_file()
    }
