"""The identities of data folder and metadata root: a broker serves no ledgers that its metadata does not know (E1).

    <data>/identity.json     {folder, cluster, metadata}: the folder's own identity, and that of its metadata root
    /cluster                 {id}: the identity of the metadata root
    /journals/<broker id>    see `journal_records`

A folder belongs to one metadata root. A root may have several folders, and a folder several brokers. First the root
gets its identity, then the folder, then each journal. Each is one durable step. So an interrupted start leaves one of
these states, and the next start continues from there:

    root        folder          | decision
    none        none            | new: make both. Ledgers in the folder or records in the root: REFUSE, damage
    none        names a cluster | REFUSE: the root is new, or was emptied
    cluster C   none            | make the folder's. Ledgers in the folder, or this broker's journal known: REFUSE
    cluster C   names C         | go on
    cluster C   names another   | REFUSE

A refusal changes nothing, neither in the folder nor in the root.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import orjson
import trio

from storage.broker_home import LOCK_RETRY_SECONDS, epochs_of
from storage.errors import IdentityMismatch
from storage.files import AlreadyLocked, Files
from storage.journal_records import JournalRecords, require_fit
from storage.metadata.older_releases import NOTICE
from storage.metadata.store import ABSENT, Conflict, MetadataStore

CLUSTER_KEY: Final = "/cluster"
IDENTITY_FILE: Final = "identity.json"
MAKING_SECONDS_MAX: Final = 10.0
"""How long a start waits for another broker that makes the same folder's identity, which takes two syncs."""

_IDENTITY_BITS: Final = 128


class FolderIdentity(NamedTuple):
    """What `identity.json` says."""

    folder: str
    cluster: str
    """Identity of the metadata root."""
    metadata: str
    """Where that root was when the folder was made. For people."""


def read_identity(files: Files, data_dir: Path) -> FolderIdentity | None:
    """The folder's identity; None if it is new. Changes nothing. Blocks.

    Raises:
        IdentityMismatch: the identity is damaged, or it is missing although the folder has data.
    """
    path = data_dir / IDENTITY_FILE
    if not files.exists(path):
        found = _first_data(files, data_dir)
        if found is not None:
            raise IdentityMismatch(
                f"{path} is missing, but {found} is there, so nobody can tell which metadata knows it. Restore the "
                "file from a copy."
            )
        return None
    file = files.open(path)
    try:
        data = file.read_at(0, file.size())
    finally:
        file.close()
    try:
        fields = orjson.loads(data)
        return FolderIdentity(fields["folder"], fields["cluster"], fields["metadata"])
    except (ValueError, KeyError, TypeError) as damaged:
        raise IdentityMismatch(f"{path} is damaged. Restore it from a copy.") from damaged


def require_embedded_metadata(files: Files, data_dir: Path, identity: FolderIdentity | None, folder: Path) -> None:
    """Return if `folder` has metadata, or `data_dir` is new and needs none. Changes nothing. Blocks.

    Call it before an embedded store is opened, because opening makes a store if there is none.

    Raises:
        IdentityMismatch: the metadata of this folder's cluster is elsewhere, or gone.
    """
    if identity is None:
        return
    if not files.exists(folder) or not any(
        name.endswith((".log", ".closed-log", ".snapshot")) and name != NOTICE for name in files.names(folder)
    ):
        raise IdentityMismatch(
            f"The data folder {data_dir} belongs to the cluster {identity.cluster} with its metadata in "
            f"{identity.metadata}, but {folder} holds no metadata. Start with the --metadata of that cluster, or "
            "restore that folder from a copy."
        )


async def join_cluster(
    files: Files,
    data_dir: Path,
    broker_id: str,
    metadata: MetadataStore,
    *,
    place: str,
    random_bits: Callable[[int], int],
) -> FolderIdentity:
    """Check that folder, journal and metadata root belong together, and make the missing identities.

    `place` names the metadata root in messages. Durable on return.

    Raises:
        IdentityMismatch: they do not belong together. Nothing was changed.
    """
    identity = await files.run(read_identity, files, data_dir)
    root = await _root(metadata)
    if root is None and identity is not None:
        raise IdentityMismatch(
            f"The data folder {data_dir} belongs to the cluster {identity.cluster} with its metadata in "
            f"{identity.metadata}, but {place} holds no cluster: it is new, or was emptied. Start with the --metadata "
            "of that cluster, or restore it from a copy."
        )
    has_records = root is None and bool(await metadata.scan("/", "0", limit=1))
    if has_records:
        # If two brokers start for the first time, the other one may have made them since the last look. It writes the
        # root first.
        root = await _root(metadata)
    if has_records and root is None:
        raise IdentityMismatch(
            f"{place} holds records, but not the one that says which cluster it is ({CLUSTER_KEY}). Restore it from a "
            "copy."
        )
    if identity is not None and root != identity.cluster:
        raise IdentityMismatch(
            f"The data folder {data_dir} belongs to the cluster {identity.cluster} with its metadata in "
            f"{identity.metadata}, but {place} is the cluster {root}. Choose the --data-dir and the --metadata that "
            "belong together."
        )
    folder = "new" if identity is None else identity.folder
    recorded = await JournalRecords(metadata, data_dir).read(broker_id)
    epochs = await files.run(epochs_of, files, data_dir, broker_id)
    require_fit(broker_id, data_dir, folder, recorded, epochs)
    if identity is not None:
        return identity
    root = root or await _make_root(metadata, _fresh(random_bits))
    wanted = FolderIdentity(_fresh(random_bits), root, place)
    deadline = trio.current_time() + MAKING_SECONDS_MAX
    while True:
        try:
            return await files.run(_make_identity, files, data_dir, wanted)
        except AlreadyLocked as held:
            if trio.current_time() >= deadline:
                raise IdentityMismatch(
                    f"Another broker has been making the data folder {data_dir} for {MAKING_SECONDS_MAX:.0f} s. Start "
                    "this one again when it is ready."
                ) from held
        # The operating system tells nobody that a lock was released.
        await trio.sleep(LOCK_RETRY_SECONDS)


async def _root(metadata: MetadataStore) -> str | None:
    record = await metadata.get(CLUSTER_KEY)
    return None if record is None else str(orjson.loads(record.value)["id"])


async def _make_root(metadata: MetadataStore, identity: str) -> str:
    try:
        await metadata.put(CLUSTER_KEY, orjson.dumps({"id": identity}), expected=ABSENT)
    except Conflict:
        made = await _root(metadata)
        assert made is not None, "nobody removes it"
        return made
    return identity


def _make_identity(files: Files, data_dir: Path, wanted: FolderIdentity) -> FolderIdentity:
    files.make_dir(data_dir)
    lock = files.lock(data_dir / "identity.lock")
    try:
        made = read_identity(files, data_dir)
        if made is not None:
            if made.cluster != wanted.cluster:
                raise IdentityMismatch(
                    f"The cluster {made.cluster} has just taken the data folder {data_dir}. Choose another --data-dir."
                )
            return made
        write_identity(files, data_dir, wanted)
        return wanted
    finally:
        lock.close()


def write_identity(files: Files, data_dir: Path, identity: FolderIdentity) -> None:
    """Write the identity of a folder that has none. Durable on return. Blocks."""
    path = data_dir / IDENTITY_FILE
    fresh = path.with_suffix(".json-new")
    file = files.open(fresh, create=True)
    try:
        data = orjson.dumps(identity._asdict(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        file.truncate(len(data))
        file.write_at(0, data)
        file.sync()
    finally:
        file.close()
    files.rename(fresh, path)
    files.sync_dir(data_dir)


def _first_data(files: Files, data_dir: Path) -> Path | None:
    """A file that a broker wrote for its ledgers; None if there is none."""
    brokers = data_dir / "brokers"
    journals = []
    if files.exists(brokers):
        journals = [brokers / name / "journal" for name in files.names(brokers)]
    for folder in (data_dir / "ledgers", *journals):
        names = files.names(folder) if files.exists(folder) else []
        if names:
            return folder / names[0]
    return None


def _fresh(random_bits: Callable[[int], int]) -> str:
    return f"{random_bits(_IDENTITY_BITS):032x}"
