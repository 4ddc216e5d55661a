"""Examines the data folder of a cluster of which no broker runs. It changes nothing.

Only what stands on the disk is there to judge: no broker can say how it is, and nothing is owned. Metadata in etcd is
read if etcd answers. Import this module after `daemon.make_importable`: it needs the daemon's packages.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import trio

from broker.config import ConfigurationError, load_settings
from broker.doctor.facts import Facts
from broker.doctor.findings import examine
from broker.doctor.folder import read_folder
from broker.doctor.records import PREFIXES, RecordReader
from broker.doctor.report import Report
from broker.errors import StartError
from broker.metadata_place import EMBEDDED_FOLDER, open_metadata
from broker.metadata_setting import EMBEDDED
from storage.clock import wall_clock_ms
from storage.files import AlreadyLocked
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.inspection import NoMetadata, inspect
from storage.metadata.store import MetadataError, Record, starting_with
from tidewire.cli.cluster.folder import ClusterFolder
from tidewire.cli.cluster.silent_disk import SilentDisk
from tidewire.cli.cluster.watched_files import WatchedFiles
from tidewire.cli.endings import CommandFailed

CONNECT_SECONDS_MAX: Final = 1.5
"""How long etcd may take to answer. The store logs nothing for as long."""

Scan = Callable[[str, str], Iterable[Record]]


def examine_stopped(data_dir: Path, note: Callable[[str], None], disk: SilentDisk) -> dict[str, Any]:
    """Return what the doctor says of the folder, as JSON. `note` gets sentences about what could not be read.

    `disk` hears of each operation, so that it can end what waits for ever.

    Raises:
        CommandFailed: a broker runs on it, or it cannot be read.
    """
    files = WatchedFiles(disk)
    try:
        folder = read_folder(files, data_dir)
    except OSError as failed:
        raise CommandFailed(f"{data_dir} cannot be read: {failed.strerror or failed}.") from failed
    if folder.facts.running:
        raise CommandFailed(
            f"{', '.join(sorted(folder.facts.running))} of {data_dir} runs, so only a broker can judge the folder. "
            "Name its address with --http HOST:PORT, or stop it."
        )
    if folder.facts.identity is None and not folder.facts.unreadable:
        raise CommandFailed(f"{data_dir} is not the data folder of a cluster. Name it with --data-dir.")
    reader = RecordReader(wall_clock_ms(), is_running=False)
    is_read = False
    try:
        if files.exists(data_dir / EMBEDDED_FOLDER):
            with inspect(files, data_dir) as inspection:
                image = inspection.state(lambda _size: None).image
            _read(reader, lambda start, end: image.scan(start, end, None))
            is_read = True
        else:
            is_read = _read_etcd(reader, data_dir, note, disk)
    except AlreadyLocked:
        raise CommandFailed(f"A process uses the metadata of {data_dir}. Wait until it has ended.") from None
    except (CorruptMetadata, NoMetadata) as damage:
        note(f"The metadata cannot be read: {damage}. See `tidewire metadata verify --data-dir {data_dir}`.")
    facts = Facts(
        records=reader.facts if is_read else None,
        data_dir=str(data_dir),
        folder=folder.facts,
        misfits=folder.misfits(reader.journals) if is_read else {},
        is_running=False,
    )
    return Report(facts, examine(facts)).as_json()


def _read(reader: RecordReader, scan: Scan) -> None:
    for prefix in PREFIXES:
        for record in scan(*starting_with(prefix)):
            reader.take(prefix, record)


def _read_etcd(reader: RecordReader, data_dir: Path, note: Callable[[str], None], disk: SilentDisk) -> bool:
    """Read the metadata in etcd. Return False if nobody knows where that is, or it does not answer."""
    folder = ClusterFolder(data_dir)
    with disk.touching(folder.path):
        cluster = folder.read()
    place = None if cluster is None else cluster.metadata_place
    try:
        config = None if cluster is None or cluster.config is None else Path(cluster.config)
        with disk.touching(config or data_dir):
            settings = load_settings({"data_dir": data_dir, "metadata": place}, config)
        settings = settings.model_copy(update={"metadata_connect_seconds_max": CONNECT_SECONDS_MAX})
    except ConfigurationError as mistake:
        note(f"The settings cannot be read: {mistake}")
        return False
    if settings.metadata == EMBEDDED:
        note(
            f"{data_dir / EMBEDDED_FOLDER} is missing. Restore it from a backup. If the metadata is in etcd, set "
            "TIDEWIRE_METADATA."
        )
        return False

    async def read() -> None:
        async with open_metadata(settings, WatchedFiles(disk)) as store:
            for prefix in PREFIXES:
                for record in await store.scan(*starting_with(prefix)):
                    reader.take(prefix, record)

    unread: list[str] = []
    try:
        trio.run(read)
    except* (MetadataError, StartError) as failed:
        unread.append(str(failed.exceptions[0]))
    for reason in unread:
        note(f"The metadata in {settings.metadata} cannot be read: {reason}. Start etcd to have it judged, too.")
    return not unread
