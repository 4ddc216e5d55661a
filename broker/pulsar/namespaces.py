"""Namespace watches of one connection: WATCH_SCALABLE_TOPICS is answered with the topics, then with each change.

Each watch has a task. It puts one update into the connection's outbox, and asks for the next when the client has read
enough. So the updates for a slow client are merged at their source (`broker.scalable.namespaces`), not queued here.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import trio

from broker.errors import NotSupported
from broker.names import NAME_BYTES_MAX, Domain, InvalidTopicName, TopicName
from broker.pulsar.connection import Connection
from broker.pulsar.faults import fault_of
from broker.pulsar.registry import Registry
from broker.pulsar.requests import Inline, Request
from broker.scalable.namespaces import NamespaceFeeds, NamespaceFollower
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.checksums import crc32c
from tidewire.wire.pulsar.frames import Frame, encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

WATCHES_MAX: Final = 256
"""Most namespace watches of one connection. Further ones are refused."""

UPDATE_TOPICS_MAX: Final = 4096
"""Most topics in one update. With names of the greatest length, it still fits a frame of the default size."""

assert UPDATE_TOPICS_MAX * NAME_BYTES_MAX < 5 * 1024 * 1024


class NamespaceHandler:
    """Serves the namespace watches of one connection."""

    def __init__(self, connection: Connection, registry: Registry, feeds: NamespaceFeeds) -> None:
        self._outbox = connection.outbox
        self._feeds = feeds
        self._nursery = connection.nursery
        self._watches = registry.namespace_watches

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`. Commands are handled in order, so a client may reuse a closed watch's id at once."""
        return {
            pb.BaseCommand.WATCH_SCALABLE_TOPICS: self._open,
            pb.BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE: self._close,
        }

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`."""
        return {}

    def close(self) -> Iterator[None]:
        """See `CommandHandler`."""
        for scope in self._watches.values():
            scope.cancel()
        self._watches.clear()
        return iter(())

    async def _open(self, frame: Frame) -> None:
        request = frame.command.watch_scalable_topics
        try:
            if request.watch_id in self._watches:
                raise NotSupported(f"This connection already has a watch {request.watch_id}. Choose another id.")
            if len(self._watches) >= WATCHES_MAX:
                raise NotSupported(
                    f"This connection already has {WATCHES_MAX} namespace watches, its maximum. Close one first."
                )
            check_namespace(request.namespace)
        except (NotSupported, InvalidTopicName) as error:
            fault = fault_of(error)
            self._put(commands.watch_scalable_topics_failed(request.watch_id, fault.code, fault.message))
            return
        scope = self._watches[request.watch_id] = trio.CancelScope()
        self._nursery.start_soon(self._watch, request, scope)

    async def _close(self, frame: Frame) -> None:
        scope = self._watches.pop(frame.command.watch_scalable_topics_close.watch_id, None)
        if scope is not None:
            scope.cancel()

    async def _watch(self, request: pb.CommandWatchScalableTopics, scope: trio.CancelScope) -> None:
        filters = {pair.key: pair.value for pair in request.property_filters}
        with scope, self._feeds.follow(request.namespace, filters) as follower:
            await self._list(request, follower)
            while True:
                await self._outbox.wait_writable()
                change = await follower.next()
                for removed in _portions(change.removed):
                    await self._put_in_turn(commands.watch_scalable_topics_diff(request.watch_id, (), removed))
                for added in _portions(change.added):
                    await self._put_in_turn(commands.watch_scalable_topics_diff(request.watch_id, added, ()))

    async def _list(self, request: pb.CommandWatchScalableTopics, follower: NamespaceFollower) -> None:
        topics = await follower.listing()
        if request.HasField("current_hash") and request.current_hash == topics_hash(topics):
            # A client that reconnects and already knows all topics does not get them again.
            return
        # The first update is sent even if it is empty, because the client waits for it.
        self._put(commands.watch_scalable_topics_snapshot(request.watch_id, topics[:UPDATE_TOPICS_MAX]))
        for added in _portions(topics[UPDATE_TOPICS_MAX:]):
            await self._put_in_turn(commands.watch_scalable_topics_diff(request.watch_id, added, ()))

    async def _put_in_turn(self, command: pb.BaseCommand) -> None:
        """Send one portion, and let other tasks run. Waits until the client has read enough of those before."""
        await self._outbox.wait_writable()
        self._put(command)
        await trio.lowlevel.checkpoint()

    def _put(self, command: pb.BaseCommand) -> None:
        self._outbox.put(encode_command(command))


def check_namespace(text: str) -> None:
    """Check that `text` is a legal `tenant/namespace`.

    Raises:
        InvalidTopicName: it is not; the message says why.
    """
    tenant, separator, namespace = text.partition("/")
    if not separator:
        raise InvalidTopicName(text, "a namespace must be tenant/namespace")
    # Constructing the name of any topic checks both names.
    TopicName(Domain.TOPIC, tenant, namespace, "any")


def topics_hash(sorted_names: Sequence[str]) -> str:
    """Hash the topics that a client knows: CRC-32C of the sorted names, in hex, least significant byte first."""
    return crc32c(",".join(sorted_names).encode()).to_bytes(4, "little").hex()


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + UPDATE_TOPICS_MAX] for start in range(0, len(names), UPDATE_TOPICS_MAX))
