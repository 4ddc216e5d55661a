"""Where the metadata is: beside the ledgers, or in etcd; as the setting says it, and opened.

The store on etcd, and gRPC with it, is imported only by a broker that uses it: the others neither need the library nor
pay for it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker.config import BrokerSettings
from broker.metadata_setting import EMBEDDED, etcd_servers
from storage.files import Files
from storage.identity import read_identity, require_embedded_metadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import MetadataStore

EMBEDDED_FOLDER: Final = "metadata"


class MetadataPlaceError(Exception):
    """The metadata cannot be kept where the settings say; the text is one sentence."""


@asynccontextmanager
async def open_metadata(settings: BrokerSettings, files: Files) -> AsyncIterator[MetadataStore]:
    """The metadata store of the settings, while the context is open.

    Raises:
        MetadataPlaceError: the place cannot be used as it is.
        IdentityMismatch: the metadata of this data folder's cluster is elsewhere, or gone.
        StoreUnavailable: etcd could not be reached in time.
        AlreadyLocked, CorruptMetadata, UnknownFormat: see the stores.
    """
    if settings.metadata == EMBEDDED:
        await files.run(_check_embedded, settings, files)
        async with EmbeddedStore.open(files, settings.data_dir) as embedded:
            yield embedded
        return
    if await files.run(files.exists, settings.data_dir / EMBEDDED_FOLDER):
        raise MetadataPlaceError(
            f"The data folder {settings.data_dir} has metadata of its own, which {settings.metadata} knows nothing of: "
            "choose another --data-dir, or --metadata embedded."
        )
    try:
        from storage.metadata.etcd.store import EtcdStore
    except ModuleNotFoundError as missing:
        if missing.name != "grpc":
            raise
        raise MetadataPlaceError("Metadata in etcd needs grpcio: pip install 'tidewire[etcd]' brings it.") from missing
    async with EtcdStore.open(
        [str(server) for server in etcd_servers(settings.metadata)],
        root=root_of(settings.cluster),
        connect_seconds_max=settings.metadata_connect_seconds_max,
    ) as etcd:
        yield etcd


def place_of(settings: BrokerSettings) -> str:
    """The metadata root, as messages name it."""
    if settings.metadata == EMBEDDED:
        return str(settings.data_dir.absolute() / EMBEDDED_FOLDER)
    return f"{settings.metadata}{root_of(settings.cluster)}"


def _check_embedded(settings: BrokerSettings, files: Files) -> None:
    identity = read_identity(files, settings.data_dir)
    require_embedded_metadata(files, settings.data_dir, identity, settings.data_dir / EMBEDDED_FOLDER)


def root_of(cluster: str) -> str:
    """Below which key of etcd a cluster's metadata stands."""
    return f"/tidewire/{cluster}"
