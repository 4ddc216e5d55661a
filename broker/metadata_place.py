"""Opens the metadata store that the settings name: beside the ledgers, or in etcd.

Only a broker that uses etcd imports the etcd store, and with it gRPC. Other brokers do not need that library.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Final

import trio

from broker.addresses import Address
from broker.config import BrokerSettings
from broker.errors import StartError
from broker.metadata_setting import EMBEDDED, etcd_servers
from storage.backup.manifest import MANIFEST
from storage.files import Files
from storage.identity import IDENTITY_FILE, read_identity, require_embedded_metadata
from storage.metadata.cluster.shared_store import SharedStore
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import MetadataStore

EMBEDDED_FOLDER: Final = "metadata"


class MetadataPlaceError(StartError):
    """The metadata store in the settings cannot be used; the text says what to do."""


@asynccontextmanager
async def open_metadata(
    settings: BrokerSettings, files: Files, internal: trio.SocketListener | None = None
) -> AsyncIterator[MetadataStore]:
    """Open the metadata store that the settings name, for as long as the context.

    `internal` is the listener for the other brokers on this data folder; None if the folder is for this one alone.

    Raises:
        MetadataPlaceError: the store cannot be used with these settings, or the data folder is a backup.
        IdentityMismatch: the metadata of this data folder's cluster is elsewhere, or missing.
        StoreUnavailable: etcd could not be reached in time.
        AlreadyLocked, CorruptMetadata, UnknownFormat: see the stores.
    """
    await files.run(_require_no_backup, settings.data_dir, files)
    if settings.metadata == EMBEDDED:
        await files.run(_check_embedded, settings, files)
        if internal is not None:
            async with SharedStore.open_shared(
                files,
                settings.data_dir,
                [internal],
                broker=settings.broker_id,
                address=internal_address(settings, internal),
                connect=_connect,
                timeout=settings.session_timeout_seconds,
                random=SystemRandom(),
            ) as shared:
                yield shared
            return
        async with EmbeddedStore.open(files, settings.data_dir, broker=settings.broker_id) as embedded:
            yield embedded
        return
    if await files.run(files.exists, settings.data_dir / EMBEDDED_FOLDER):
        raise MetadataPlaceError(
            f"The data folder {settings.data_dir} has its own embedded metadata, which is not in {settings.metadata}. "
            "Choose another --data-dir, or --metadata embedded."
        )
    try:
        from storage.metadata.etcd.store import EtcdStore
    except ModuleNotFoundError as missing:
        if missing.name != "grpc":
            raise
        raise MetadataPlaceError(
            "Metadata in etcd needs the package grpcio. Install it with `pip install 'tidewire[etcd]'`."
        ) from missing
    async with EtcdStore.open(
        [str(server) for server in etcd_servers(settings.metadata)],
        root=root_of(settings.cluster),
        connect_seconds_max=settings.metadata_connect_seconds_max,
    ) as etcd:
        yield etcd


def place_of(settings: BrokerSettings) -> str:
    """Return the metadata store's name for messages."""
    if settings.metadata == EMBEDDED:
        return str(settings.data_dir.absolute() / EMBEDDED_FOLDER)
    return f"{settings.metadata}{root_of(settings.cluster)}"


def internal_address(settings: BrokerSettings, internal: trio.SocketListener) -> str:
    """Return where other brokers reach the internal listener. It has the host of the settings, and the real port."""
    assert settings.internal is not None, "it listens there"
    return str(settings.internal._replace(port=internal.socket.getsockname()[1]))


async def _connect(address: str) -> trio.abc.Stream:
    host, port = Address.parse(address)
    return await trio.open_tcp_stream(host, port)


def _require_no_backup(data_dir: Path, files: Files) -> None:
    if files.exists(data_dir / MANIFEST) and not files.exists(data_dir / IDENTITY_FILE):
        raise MetadataPlaceError(
            f"{data_dir} is a backup. Make a data folder from it with `tidewire restore {data_dir} --data-dir NEW`."
        )


def _check_embedded(settings: BrokerSettings, files: Files) -> None:
    identity = read_identity(files, settings.data_dir)
    require_embedded_metadata(files, settings.data_dir, identity, settings.data_dir / EMBEDDED_FOLDER)


def root_of(cluster: str) -> str:
    """Return the etcd key prefix of a cluster's metadata."""
    return f"/tidewire/{cluster}"
