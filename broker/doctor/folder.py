"""Reads what the doctor judges from a data folder. It changes nothing, and blocks.

A broker's lock is tried for a moment, as other brokers do to learn whether it is dead (`storage.dead_or_alive`). A
start tries a held lock again, so it does not notice.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from broker.doctor.facts import Fence, FolderFacts
from storage.broker_home import epochs_of, lock_path
from storage.errors import FenceDamaged, IdentityMismatch
from storage.fence import EpochRecord
from storage.files import AlreadyLocked, Files
from storage.identity import FolderIdentity, read_identity
from storage.journal_records import Recorded, require_fit
from storage.ledger_folder import LedgerFolder
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.epochs import MetadataEpochs
from storage.metadata.opening import metadata_directory


class FolderRead(NamedTuple):
    """What was found in a data folder."""

    facts: FolderFacts
    epochs: Mapping[str, Mapping[int, EpochRecord]]
    """Those of each broker's journal."""

    def misfits(self, records: Mapping[str, Recorded]) -> dict[str, str]:
        """Return which journals do not belong to their records, by broker, and why."""
        if self.facts.identity is None:
            return {}
        found: dict[str, str] = {}
        for broker in self.epochs.keys() | records.keys():
            recorded = records.get(broker)
            if recorded is not None and recorded.folder != self.facts.identity:
                continue  # The folder of another machine cannot be seen from here.
            try:
                require_fit(broker, Path(self.facts.path), self.facts.identity, recorded, self.epochs.get(broker, {}))
            except IdentityMismatch as misfit:
                found[broker] = str(misfit)
        return found


def read_folder(files: Files, data_dir: Path) -> FolderRead:
    """Read the folder.

    Raises:
        OSError: it cannot be read.
    """
    unreadable: dict[str, str] = {}
    identity: FolderIdentity | None = None
    try:
        identity = read_identity(files, data_dir)
    except IdentityMismatch as damage:
        unreadable[str(data_dir)] = str(damage)
    homes = data_dir / "brokers"
    brokers = files.names(homes) if files.exists(homes) else []
    epochs: dict[str, Mapping[int, EpochRecord]] = {}
    for broker in brokers:
        try:
            epochs[broker] = epochs_of(files, data_dir, broker)
        except FenceDamaged as damage:
            unreadable[str(homes / broker)] = str(damage)
    fence: Fence | None = None
    try:
        fence = _fence(files, metadata_directory(data_dir))
    except CorruptMetadata as damage:
        unreadable[str(metadata_directory(data_dir))] = str(damage)
    running = {broker for broker in brokers if _is_held(files, lock_path(data_dir, broker))}
    folder = LedgerFolder(files, data_dir / "ledgers")
    is_there = files.exists(folder.path)
    facts = FolderFacts(
        path=str(data_dir),
        identity=None if identity is None else identity.folder,
        cluster=None if identity is None else identity.cluster,
        metadata="" if identity is None else identity.metadata,
        ledgers=frozenset(folder.ids() if is_there else ()),
        unknown=tuple(folder.unknown_names() if is_there else ()),
        brokers=frozenset(brokers),
        running=frozenset(running),
        ended=frozenset(brokers) - running,
        fence=fence,
        unreadable=unreadable,
    )
    return FolderRead(facts, epochs)


def _fence(files: Files, directory: Path) -> Fence | None:
    if not files.exists(directory):
        return None
    epochs = MetadataEpochs(files, directory, _draw_nothing)
    newest = epochs.newest()
    if newest is None:
        return None
    # In a copy without lock files, nobody holds a lock.
    has_ended = True
    with suppress(FileNotFoundError):
        has_ended = epochs.has_ended(newest)
    return Fence(newest.epoch, newest.broker, has_ended)


def _draw_nothing(_bits: int) -> int:
    raise AssertionError("whoever only reads takes no epoch")


def _is_held(files: Files, path: Path) -> bool:
    if not files.exists(path):
        return False
    try:
        files.lock(path, shared=True).close()
    except AlreadyLocked:
        return True
    return False
