"""Registers a broker at its start: in one cluster, with one data folder, as the only process with its id.

The steps have this order, and each is done before anything that it protects is changed:
1. Check that the data folder is on no network file system (`storage.file_systems`). The metadata store opens behind it.
2. Check that folder, journal and metadata root belong together (`storage.identity`).
3. Lock the broker's folder. This fails at once if a broker with this id runs there.
4. Open a session, and register the broker's id (`cluster.membership`).

Only then is the journal fenced and replayed.
"""

import secrets
from typing import Final, NamedTuple

from broker.addresses import Address, KafkaNode
from broker.cluster.membership import Membership
from broker.cluster.node_ids import node_id_of
from broker.config import BrokerSettings
from broker.metadata_place import place_of
from storage.broker_home import BrokerHome, journal_dir
from storage.file_systems import mount_table, require_local
from storage.files import Files
from storage.identity import join_cluster
from storage.metadata.opening import metadata_directory
from storage.metadata.store import MetadataStore, Session

PROBED_SECONDS_MAX: Final = 2.0
"""How long the start tries again while the broker's folder is locked, because another broker may only be probing it."""


class BrokerRegistration(NamedTuple):
    """What a registered broker holds."""

    home: BrokerHome
    session: Session
    membership: Membership
    kafka: KafkaNode | None


def require_local_folders(settings: BrokerSettings) -> None:
    """Check the file systems of the broker's folders. Changes nothing. Blocks.

    Raises:
        NetworkFileSystem: a folder is on one that cannot be used.
    """
    data = settings.data_dir
    folders = (data, metadata_directory(data), data / "ledgers", journal_dir(data, settings.broker_id))
    require_local(folders, mount_table())


async def register_broker(
    settings: BrokerSettings,
    files: Files,
    metadata: MetadataStore,
    *,
    service_url: str,
    http_url: str,
    internal_url: str | None,
    kafka_address: Address | None = None,
    release: str,
) -> BrokerRegistration:
    """Register the broker that the settings name.

    Args:
        settings: the broker's settings.
        files: the disk with its data folder.
        metadata: the store of the registrations.
        service_url: where other brokers send clients of Pulsar's protocol.
        http_url: where it serves HTTP.
        internal_url: where the other brokers on its data folder reach its metadata store; None if it is alone.
        kafka_address: where Kafka's clients reach it; None if it does not serve them.
        release: the version of Tidewire that it runs.

    Raises:
        IdentityMismatch: folder, journal and metadata do not belong together; nothing was changed.
        DataFolderInUse, BrokerRuns: a broker with this id is already running.
        FenceDamaged: the fence of its journal is damaged.
    """
    identity = await join_cluster(
        files,
        settings.data_dir,
        settings.broker_id,
        metadata,
        place=place_of(settings),
        random_bits=secrets.randbits,
    )
    home = await BrokerHome.enter(
        files, settings.data_dir, identity.folder, settings.broker_id, patience_seconds=PROBED_SECONDS_MAX
    )
    try:
        session = await metadata.open_session(settings.session_timeout_seconds)
        kafka = None
        if kafka_address is not None:
            kafka = KafkaNode(await node_id_of(settings.broker_id, metadata), kafka_address)
        membership = Membership(
            metadata,
            broker_id=settings.broker_id,
            folder_id=identity.folder,
            lock_name=home.lock_name,
            service_url=service_url,
            http_url=http_url,
            internal_url=internal_url,
            kafka=kafka,
            release=release,
        )
        await membership.register(session, timeout_seconds=settings.session_timeout_seconds)
    except BaseException:
        home.close()
        raise
    return BrokerRegistration(home, session, membership, kafka)
