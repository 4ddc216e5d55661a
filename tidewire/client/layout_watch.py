"""The layout session: the broker pushes a topic's layout whenever it changes, so the client knows the newest one.

A watch has two parts. `TopicLayout` is the knowledge, which any task may look at or wait on. `LayoutWatch` is the task
that keeps it current. When its connection is lost, it opens a new session at the topic's current owner. Until then the
last layout stays. It can only be stale, and the segments refuse requests that a stale layout leads to.
"""

import logging
from collections.abc import Callable
from typing import Final

import anyio

from tidewire.client.background import BackgroundTask
from tidewire.client.connection import Connection
from tidewire.client.network import Network
from tidewire.client.troubles import ShownTroubles
from tidewire.client.waking import Changes, Signal
from tidewire.protocol.errors import ConnectionLost, OperationTimedOut, TidewireError, fresh
from tidewire.protocol.features import require_scalable_topics
from tidewire.protocol.layout import Layout, Succession
from tidewire.protocol.listeners import Kind
from tidewire.protocol.refusals import TRANSIENT, TopicNotFound, refusal
from tidewire.protocol.topic_names import is_scalable
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_log: Final = logging.getLogger(__name__)


class TopicLayout:
    """The newest known layout of one topic. It ignores an older one that comes late."""

    def __init__(self, topic: str, layout: Layout | None = None) -> None:
        """Start without a layout, or with a `layout` that never changes."""
        self.topic = topic
        self.changes = Changes()
        """Notified at each new layout, and at the failure that ends the watch."""
        self._layout = layout
        self._failure: TidewireError | None = None

    @property
    def current(self) -> Layout:
        """The newest layout. Use it only after the first `until` has returned.

        Raises:
            TidewireError: there will be no further layout; the error says why.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        assert self._layout is not None, "looked at before the first layout came"
        return self._layout

    def offer(self, layout: Layout) -> None:
        """Take over a layout that has come, if it is newer.

        Raises:
            TopicNotFound: it belongs to another topic of the same name: the known topic was deleted.
        """
        succession = Succession.NEWER if self._layout is None else layout.succession(self._layout)
        if succession is Succession.OTHER_TOPIC:
            raise TopicNotFound(f"{self.topic} was deleted and created again", pb.ServerError.TopicNotFound)
        if succession is Succession.NEWER:
            self._layout = layout
            self.changes.notify()

    def fail(self, error: TidewireError) -> None:
        """There will be no further layout, because of `error`."""
        if self._failure is None:
            self._failure = error
            self.changes.notify()

    async def until(self, wanted: Callable[[Layout], bool]) -> Layout:
        """The first layout, from the current one on, for which `wanted` holds. Waits without a time limit.

        Raises:
            TidewireError: there will be no further layout; the error says why.
        """
        while True:
            if self._failure is not None:
                raise fresh(self._failure)
            if self._layout is not None and wanted(self._layout):
                return self._layout
            await self.changes.wait()


class LayoutWatch:
    """Keeps the layout of one scalable topic current."""

    def __init__(self, network: Network, topic: str, troubles: ShownTroubles) -> None:
        """A watch of `topic`; `run` serves it, and reports to `troubles` why there is no session."""
        self.layout = TopicLayout(topic)
        self._troubles = troubles
        self._network = network
        self._backoff = network.backoff()
        self._ended = Signal()
        self._end: TidewireError | None = None

    async def run(self) -> None:
        """Hold a session open until cancelled, or until the broker says that there is no such topic to watch."""
        try:
            while True:
                try:
                    await self._watch()
                except TRANSIENT as error:
                    _log.info("the layout session of %s ended: %s", self.layout.topic, error)
                    self._troubles.met(self, error)
                await self._backoff.wait()
        except TidewireError as error:
            self.layout.fail(error)
        finally:
            self._troubles.over(self)

    async def _watch(self) -> None:
        connection = await self._network.owner_of(self.layout.topic)
        require_scalable_topics(connection)
        self._end = None
        session_id = connection.attach(Kind.LAYOUT, self)
        try:
            connection.write(encode_command(commands.scalable_topic_lookup(session_id, self.layout.topic)))
            while self._end is None:
                await self._ended.wait()
            raise fresh(self._end)
        finally:
            connection.detach(Kind.LAYOUT, session_id)
            connection.write(encode_command(commands.scalable_topic_close(session_id)))

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        assert payload is None
        update = command.scalable_topic_update
        if update.HasField("error"):
            self._finish(refusal(update.error, update.message))
        elif update.HasField("dag"):
            layout = Layout.of_update(self.layout.topic, update)
            self._troubles.over(self)
            self._backoff.reset()
            try:
                self.layout.offer(layout)
            except TopicNotFound as error:
                self._finish(error)

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        self._finish(error)

    def _finish(self, error: TidewireError) -> None:
        self._end = error
        self._ended.set()


class _OneLook:
    """Listens for the first layout of a session."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.controller_url: str | None = None
        self.error: TidewireError | None = None

    def received(self, command: pb.BaseCommand, payload: bytes | None) -> None:
        """See `Listener`."""
        assert payload is None
        update = command.scalable_topic_update
        if update.HasField("error"):
            self.error = refusal(update.error, update.message)
        else:
            self.controller_url = update.dag.controller_broker_url or None
        self.answered.set()

    def connection_lost(self, error: TidewireError) -> None:
        """See `Listener`."""
        self.error = error
        self.answered.set()


async def controller_of(network: Network, topic: str) -> Connection:
    """A connection to the broker that assigns the topic's segments to its stream consumers, or that can start to.

    Raises:
        TidewireError: there is no such topic, or no broker could answer.
    """
    connection = await network.owner_of(topic)
    require_scalable_topics(connection)
    look = _OneLook()
    session_id = connection.attach(Kind.LAYOUT, look)
    seconds = network.settings.operation_timeout_seconds
    try:
        connection.write(encode_command(commands.scalable_topic_lookup(session_id, topic)))
        with anyio.fail_after(seconds):
            await look.answered.wait()
    except TimeoutError as error:
        raise OperationTimedOut(
            f"{connection.address} did not send the layout of {topic} within {seconds} s"
        ) from error
    finally:
        connection.detach(Kind.LAYOUT, session_id)
        connection.write(encode_command(commands.scalable_topic_close(session_id)))
    if look.error is not None:
        raise fresh(look.error)
    # Before the first consumer there is no controller; the first request makes one.
    if look.controller_url is None:
        return connection
    return await network.connection_to(look.controller_url, connection.address, f"the controller of {topic}")


async def partitions_of(network: Network, topic: str) -> Layout:
    """The layout of a `persistent://` topic: its partitions, or the topic itself.

    Raises:
        TidewireError: no broker could answer.
    """

    async def ask() -> Layout:
        connection = await network.service()
        answer = await connection.request(
            lambda request_id: commands.partitioned_metadata(topic, request_id),
            pb.CommandPartitionedTopicMetadataResponse,
        )
        return Layout.of_partitions(topic, answer.partitions)

    return await network.persistently(ask, f"requesting the partitions of {topic}")


async def open_layout(
    network: Network, topic: str, troubles: ShownTroubles | None = None
) -> tuple[TopicLayout, BackgroundTask | None]:
    """The layout of a topic of either kind, known when this returns, and the task that keeps it current, if any.

    The task reports to `troubles`, by default the client's, while it has no session.

    Raises:
        TidewireError: there is no such topic, or no broker could answer in time.
    """
    if not is_scalable(topic):
        return TopicLayout(topic, await partitions_of(network, topic)), None
    troubles = troubles or network.troubles
    watch = LayoutWatch(network, topic, troubles)
    task = network.start(watch.run(), f"layout watch of {topic}", watch.layout.fail)
    seconds = network.settings.operation_timeout_seconds
    try:
        with anyio.fail_after(seconds):
            await watch.layout.until(lambda _: True)
    except TimeoutError as error:
        # Others of the client may be in another trouble.
        trouble = troubles.of(watch)
        task.cancel()
        reason = ConnectionLost("the broker does not answer") if trouble is None else trouble.error
        raise OperationTimedOut(f"the layout of {topic} did not arrive within {seconds} s: {reason}") from error
    except BaseException:
        task.cancel()
        raise
    return watch.layout, task
