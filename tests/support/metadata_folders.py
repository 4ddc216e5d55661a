"""Folders of an embedded store in the states that crashes and operators leave, on a real or simulated disk.

folder = make_folder(DiskFiles(), tmp_path / "data")           # records, an index, a large change set
append(DiskFiles(), tmp_path / "data", unfinished(...))        # and what a store would never leave by itself
contents(tmp_path / "data")                                    # every file's bytes, to see that nothing changed
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import trio

from storage.files import DiskFiles, Files
from storage.metadata import transactions
from storage.metadata.batches import Body, pack
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.opening import metadata_directory, open_folder
from storage.metadata.records import DataRecord, encode
from storage.metadata.store import IndexEntry, Put, Record

LARGE = 500
"""Records of the one large change set, more than fit a batch."""


async def fill(files: Files, data_dir: Path, *, large: bool = True) -> None:
    """Seven records under `/n/` with an index over them, one deleted, and LARGE ones under `/large/` in one step."""
    async with EmbeddedStore.open(files, data_dir) as store:
        for number in range(8):
            await store.put(f"/n/{number}", b'{"n": %d}' % number, indexes=(IndexEntry("odd", f"{number % 2}"),))
        await store.delete("/n/5")
        if large:
            await store.commit([Put(f"/large/{number:04}", b"x" * 50) for number in range(LARGE)])


def make_folder(data_dir: Path, *, large: bool = True) -> Path:
    """`fill`, on the real disk; the folder that holds the files."""
    trio.run(lambda: fill(DiskFiles(), data_dir, large=large))
    return metadata_directory(data_dir)


def append(files: Files, data_dir: Path, *pieces: Sequence[Body]) -> None:
    """Write batches behind the log's end, each piece durable before the next."""
    opened = open_folder(files, metadata_directory(data_dir))
    try:
        for bodies in pieces:
            opened.log.append(bodies)
    finally:
        opened.close()


def next_revision(files: Files, data_dir: Path) -> int:
    """What the next change set's revision will be."""
    opened = open_folder(files, metadata_directory(data_dir))
    opened.close()
    return opened.image.revision + 1


def large_records(revision: int, prefix: str = "/partial/") -> list[DataRecord]:
    """A change set of more than a batch."""
    return [Record(f"{prefix}{number:04}", b"y" * 50, revision) for number in range(300)]


def unfinished(revision: int) -> list[Body]:
    """A transaction that lacks its last batch, and so its end."""
    whole = [body for piece in transactions.pieces("cut", large_records(revision)) for body in piece]
    assert len(whole) > 2
    return whole[:-1]


def aborted(revision: int) -> list[Body]:
    """A transaction that was given up."""
    return [*unfinished(revision), *transactions.abort("given up")]


def small(records: Iterable[DataRecord]) -> list[Body]:
    """A change set that fits a batch."""
    return pack([[encode(record) for record in records]])


def contents(data_dir: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below, its bytes and when it was last changed."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(data_dir.rglob("*"))
        if path.is_file()
    }
