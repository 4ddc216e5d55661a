"""Makes a new data folder from a backup: the same topics, in a folder that is nobody's copy.

The original may still run, or start again. So the new folder gets identities of its own, and the metadata and journals
name these. Parts of the two folders can then never be mixed, because a broker refuses such a folder (`identity`). Ids
that the original gave out after the backup are not given out again: the counters jump.

| step | what                                                 | the folder if it is interrupted then         |
|------|------------------------------------------------------|----------------------------------------------|
| 1    | check every file of the backup                       | is not made                                  |
| 2    | copy all files; the fences name the new folder       | has no identity, so a broker refuses it      |
| 3    | write the new identities into the metadata           | the same                                     |
| 4    | write `identity.json`                                | is complete                                  |
"""

import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from storage.backup.copying import Progress, check_backup, copy_file, read_manifest, require_empty, sync_folders
from storage.backup.manifest import Manifest
from storage.epoch_files import EpochFiles
from storage.fence import EpochRecord
from storage.files import Files
from storage.identity import CLUSTER_KEY, FolderIdentity, write_identity
from storage.journal_records import JOURNALS
from storage.ledger_ids import LEDGER_IDS_KEY
from storage.managed_ledger_record import MANAGED_LEDGERS, renamed
from storage.metadata.chain import LogName
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.log import prepare_file
from storage.metadata.opening import metadata_directory
from storage.metadata.store import MetadataStore, Record, starting_with

LEDGER_IDS_SKIPPED: Final = 1 << 32
"""More ledgers than the original makes after the backup. So no position means two messages."""
TRANSACTION_IDS_SKIPPED: Final = 1 << 32
PRODUCER_IDS_SKIPPED: Final = 1 << 32
"""The same for the ids of transactions, and of Kafka's producers."""

SCANNED_AT_ONCE: Final = 256

ID_COUNTERS: Final = (("/txn/tc-seq/", TRANSACTION_IDS_SKIPPED), ("/kafka/producer-ids", PRODUCER_IDS_SKIPPED))
"""The counters whose records are `{"next": ID}`, by their keys' beginning (`txn/coordinator`, `txn/producer_ids`)."""


class Restored(NamedTuple):
    """The new folder."""

    identity: FolderIdentity
    manifest: Manifest


async def restore(
    files: Files,
    backup: Path,
    target: Path,
    *,
    checked: Progress,
    copied: Progress,
    random_bits: Callable[[int], int] = secrets.randbits,
) -> Restored:
    """Make the data folder `target` from a backup. Durable on return. `checked` and `copied` hear of the bytes.

    Raises:
        FolderNotEmpty: it has files.
        BackupDamaged: a file of the backup is missing, damaged or of a later release. Nothing was made.
        DiskFull: the folder is incomplete, and a broker refuses it.
    """
    await files.run(require_empty, files, target)
    manifest = await files.run(read_manifest, files, backup)
    await files.run(check_backup, files, backup, manifest, checked)
    place = await files.run(target.absolute)
    fresh = FolderIdentity(f"{random_bits(128):032x}", f"{random_bits(128):032x}", str(metadata_directory(place)))
    await files.run(_copy_all, files, backup, target, manifest, copied)
    await files.run(_rename_fences, files, target, manifest, fresh.folder)
    await files.run(_begin_log, files, metadata_directory(target), manifest.batch)
    async with EmbeddedStore.open(files, target) as store:
        await _rename_records(store, str(place), fresh)
        await store.take_snapshot()
    await files.run(partial(write_identity, files, target, fresh))
    return Restored(fresh, manifest)


def _copy_all(files: Files, backup: Path, target: Path, manifest: Manifest, copied: Progress) -> None:
    files.make_dir(target)
    for each in manifest.files:
        copy_file(files, backup, target, each, copied, is_padded=True)
    files.make_dir(target / "ledgers")
    sync_folders(files, target, manifest)


def _rename_fences(files: Files, target: Path, manifest: Manifest, folder: str) -> None:
    for each in manifest.files:
        path = target / each.path
        if path.parent.name != "journal" or not path.name.startswith("fence-"):
            continue
        fences = EpochFiles(files, path.parent)
        record = fences.read(int(path.name.removeprefix("fence-")), EpochRecord.decode)
        assert record is not None, "an empty fence is not backed up"
        owner = record.owner._replace(folder=folder)
        file = files.open(path)
        try:
            file.write_at(0, record._replace(owner=owner).encode())
            file.sync()
        finally:
            file.close()


def _begin_log(files: Files, directory: Path, batch: int) -> None:
    """The log goes on behind the snapshot, as if it had just rolled there."""
    name = LogName(batch + 1, 0)
    prepared = prepare_file(files, directory, str(name))
    prepared.close()
    files.rename(prepared.path, directory / str(name))
    files.sync_dir(directory)


async def _rename_records(store: MetadataStore, path: str, fresh: FolderIdentity) -> None:
    await _rewrite(store, CLUSTER_KEY, lambda fields: {**fields, "id": fresh.cluster})
    await _rewrite(store, JOURNALS, lambda fields: {**fields, "folder": fresh.folder, "path": path})
    for key, skipped in ID_COUNTERS:
        await _rewrite(store, key, partial(_skip_ids, skipped=skipped))
    counter = await store.get(LEDGER_IDS_KEY)
    if counter is not None:
        value = str(int(counter.value) + LEDGER_IDS_SKIPPED).encode()
        await store.put(LEDGER_IDS_KEY, value, expected=counter.version)
    async for record in _records(store, MANAGED_LEDGERS):
        await store.commit([renamed(record, fresh.folder)])


def _skip_ids(fields: dict[str, Any], *, skipped: int) -> dict[str, Any]:
    return {**fields, "next": fields["next"] + skipped}


async def _records(store: MetadataStore, prefix: str) -> AsyncIterator[Record]:
    start, end = starting_with(prefix)
    while records := await store.scan(start, end, limit=SCANNED_AT_ONCE):
        for record in records:
            yield record
        start = records[-1].key + "\0"


async def _rewrite(store: MetadataStore, prefix: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    async for record in _records(store, prefix):
        await store.put(record.key, orjson.dumps(change(orjson.loads(record.value))), expected=record.version)
