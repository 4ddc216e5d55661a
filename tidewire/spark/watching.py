"""What a stream's planner knows of its topics: layouts and ends of segments, kept current by brokers' pushes.

A session for each scalable topic gets the topic's layout when it changes. Each segment has a reader at the stream's
position, with permits for one message, which gets one when there is more to read. So the planner asks only when an
answer has changed, and an idle stream sends nothing in either direction. Spark asks every ten milliseconds, and is
answered from memory.

Nothing runs in the background. What has arrived waits in the sockets' buffers, bounded by the permits, until `arrived`
processes it.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import ProtocolViolation, TidewireError
from tidewire.protocol.layout import Layout, Segment, Succession
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.protocol.topic_names import SCALABLE
from tidewire.spark.brokers import Brokers, Connect, connect_by_tcp
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.held_subscription import SENT_AWAY_MAX
from tidewire.spark.layouts import (
    LayoutChanged,
    came_and_went,
    is_gone,
    layout_of,
    open_layout,
    open_namespace,
    parts_of,
)
from tidewire.spark.measuring import BacklogRange, ask_end, subscribe_reader, wanted
from tidewire.spark.options import ReadOptions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import Frame
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_T: Final = pb.BaseCommand.Type
_NAMESPACE_WATCH: Final = 1


class _Followed:
    """One segment."""

    def __init__(self, part: Segment) -> None:
        self.part = part
        self.owner: BlockingConnection | None = None
        self.consumer_id = 0
        self.is_stale = True
        """Whether `known` may have changed."""
        self.known: BacklogRange | None = None
        """The last answer."""
        self.armed_at: EntryPosition | None = None
        """The position of the reader that gets a message when there is more to read; None without one."""


class _Topic:
    """One topic's layout."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.session_id = 0
        self.owner: BlockingConnection | None = None
        self.layout = Layout(-1, {})
        """The newest pushed layout."""
        self.parts: dict[str, Segment] | None = None
        """By name; None while unknown."""
        self.is_gone = False


class Watch:
    """See the module's docstring. After an error of a connection, call `reset` and go on with new connections."""

    def __init__(self, options: ReadOptions, connect: Connect | None = None) -> None:
        """Ask nothing yet; `connect` makes connections, by default over TCP."""
        self._options = options
        self._connect = connect or partial(connect_by_tcp, options.operation_timeout_seconds)
        self._brokers = self._new_brokers()
        self._connections: list[BlockingConnection] = []
        self._numbers = count(2)
        self._topics: dict[str, _Topic] = {}
        self._matching: set[str] | None = None
        self._followed: dict[tuple[str, str], _Followed] = {}
        self._consumers: dict[tuple[int, int], _Followed] = {}
        self._has_news = True

    def _new_brokers(self) -> Brokers:
        return Brokers(self._options, self._connected)

    def _connected(self, address: BrokerAddress, proxied_to: BrokerAddress | None) -> BlockingConnection:
        made = self._connect(address, proxied_to)
        made.unasked = partial(self._take, made)
        self._connections.append(made)
        return made

    def close(self) -> None:
        """Close all connections."""
        self._brokers.__exit__(None, None, None)

    def reset(self) -> None:
        """Forget connections and what was opened on them. Learned facts stay until they are asked for again."""
        with suppress(TidewireError, OSError):
            self.close()
        self._connections.clear()
        self._consumers.clear()
        self._brokers = self._new_brokers()
        self._matching = None
        for topic in self._topics.values():
            topic.owner = None
        for followed in self._followed.values():
            followed.owner = followed.armed_at = None
            followed.is_stale = True
        self._has_news = True

    def arrived(self) -> bool:
        """Process what brokers have pushed. Returns whether anything may have changed. Does not wait.

        Raises:
            ConnectionLost, ProtocolViolation: a connection ended.
        """
        for connection in tuple(self._connections):
            for frame in connection.arrived():
                self._take(connection, frame)
        news, self._has_news = self._has_news, False
        return news

    @property
    def connections(self) -> tuple[BlockingConnection, ...]:
        """The connections that may get pushes. Call `arrived` before you wait on them."""
        return tuple(self._connections)

    def topics(self) -> list[str]:
        """The topics to read, now.

        Raises:
            TidewireError: no broker could be asked.
        """
        pattern = self._options.pattern
        if pattern is None:
            return list(self._options.topics)
        if self._matching is None:
            owner = open_namespace(self._brokers, pattern.namespace, _NAMESPACE_WATCH)
            self._wait_for(owner, f"the topics of {pattern.namespace}", lambda: self._matching is not None)
        return sorted(self._matching or ())

    def parts(self, topic: str) -> dict[str, Segment] | None:
        """A topic's parts by name, "" for a plain topic; None when there is no such topic.

        Raises:
            TidewireError: no broker could be asked.
        """
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic(topic)
        if not known.is_gone and known.owner is None:
            try:
                self._open(known)
            except Refused as refused:
                if not is_gone(refused):
                    raise
                known.is_gone = True
                known.parts = None
        return None if known.is_gone else known.parts

    def _open(self, topic: _Topic) -> None:
        if not topic.name.startswith(SCALABLE):
            # A stream learns the number of partitions only when it starts.
            topic.parts = {part.name or "": part for part in parts_of(self._brokers, topic.name)}
            topic.owner = self._brokers.owner_of(topic.name)
            return
        topic.parts = None
        # A new id, because the last session may still be open on the same connection.
        topic.session_id = next(self._numbers)
        topic.owner = open_layout(self._brokers, topic.name, topic.session_id)
        try:
            self._wait_for(topic.owner, f"the layout of {topic.name}", lambda: topic.parts is not None)
        except TidewireError:
            topic.owner = None
            raise

    def creation(self, part: Segment) -> str:
        """A part's creation id, which is asked for only if no current answer has it.

        Raises:
            LayoutChanged, TidewireError: as `behind`.
        """
        followed = self._follow(part)
        if followed.known is not None and not followed.is_stale:
            return followed.known.creation
        return self._ask(followed, wanted(EARLIEST, until_ms=0)).creation

    def opening(self, part: Segment) -> BacklogRange:
        """All of a part, or its beginning. Once a part is known to have messages, the answer comes from memory.

        Raises:
            LayoutChanged, TidewireError: as `behind`.
        """
        followed = self._follow(part)
        known = followed.known
        return (
            known if known is not None and known.after == EARLIEST and known.messages else self.behind(part, EARLIEST)
        )

    def _follow(self, part: Segment) -> _Followed:
        key = (part.topic, part.name or "")
        followed = self._followed.get(key)
        if followed is None or followed.part.wire_name != part.wire_name:
            followed = self._followed[key] = _Followed(part)
        return followed

    def behind(
        self,
        part: Segment,
        after: EntryPosition,
        *,
        messages_max: int | None = None,
        bytes_max: int | None = None,
        until_ms: int | None = None,
    ) -> BacklogRange:
        """What follows a position in a part. While nothing does, the answer comes from memory.

        Raises:
            LayoutChanged: the part is gone.
            TidewireError: no broker could be asked.
        """
        followed = self._follow(part)
        if messages_max is not None or bytes_max is not None or until_ms is not None:
            return self._ask(followed, wanted(after, messages_max, bytes_max, until_ms))
        known = followed.known
        # Brokers report new entries behind an empty range, but not behind unread messages.
        is_told = known is not None and (known.end == after or known.is_final)
        if known is not None and is_told and not followed.is_stale and known.after == after:
            return known
        # Cleared before the request, so that a push during it counts as newer than its answer.
        followed.is_stale = False
        known = followed.known = self._ask(followed, wanted(after))
        if known.end == after and not known.is_final and followed.armed_at != after:
            self._arm(followed, after)
        return known

    def since(self, part: Segment, time_ms: int) -> EntryPosition:
        """The position behind which everything was stored at this time or later.

        Raises:
            LayoutChanged, TidewireError: as `behind`.
        """
        return self._ask(self._follow(part), pb.BacklogRangeRequest(since_ms=time_ms)).after

    def forget(self, part: Segment) -> None:
        """The stream no longer reads the part."""
        followed = self._followed.pop((part.topic, part.name or ""), None)
        if followed is not None:
            self._close_consumer(followed)

    def _ask(self, followed: _Followed, backlog_range: pb.BacklogRangeRequest) -> BacklogRange:
        attempts_left = SENT_AWAY_MAX
        while True:
            attempts_left -= 1
            owner = followed.owner or self._subscribe(followed, LATEST)
            try:
                found = ask_end(owner, followed.consumer_id, backlog_range).backlog_range
                break
            except Refused as refused:
                # If the broker closed the consumer meanwhile, another one may succeed.
                if followed.owner is not None or not attempts_left:
                    followed.owner = followed.armed_at = None
                    self._explain(followed.part, refused)
                    raise
        if found is None:
            raise ProtocolViolation(
                f"the broker of {followed.part.wire_name} cannot measure the backlog, which streams need"
            )
        return found

    def _explain(self, part: Segment, refused: Refused) -> None:
        """If a part cannot be opened because it is gone, get the new layout."""
        topic = self._topics.get(part.topic)
        if topic is None or not is_gone(refused):
            return
        if topic.owner is not None and part.topic.startswith(SCALABLE):
            topic.owner.send(commands.scalable_topic_close(topic.session_id))
        topic.owner = None
        if (part.name or "") not in (self.parts(part.topic) or {}):
            raise LayoutChanged from refused

    def _subscribe(self, followed: _Followed, after: EntryPosition) -> BlockingConnection:
        name = followed.part.wire_name
        consumer_id = next(self._numbers)
        try:
            owner = self._brokers.owner_of(name)
            subscribe_reader(owner, name, consumer_id, after=after, uncommitted=self._options.uncommitted)
        except Refused as refused:
            followed.armed_at = None
            self._explain(followed.part, refused)
            raise
        followed.owner, followed.consumer_id = owner, consumer_id
        self._consumers[id(owner), consumer_id] = followed
        return owner

    def _arm(self, followed: _Followed, after: EntryPosition) -> None:
        """Ask the broker to send a message as soon as there is one behind `after`."""
        self._close_consumer(followed)
        followed.armed_at = after
        self._subscribe(followed, after).send(commands.flow(followed.consumer_id, 1))

    def _close_consumer(self, followed: _Followed) -> None:
        owner, followed.owner, followed.armed_at = followed.owner, None, None
        if owner is not None:
            self._consumers.pop((id(owner), followed.consumer_id), None)
            owner.request(partial(commands.close_consumer, followed.consumer_id), pb.CommandSuccess)

    def _wait_for(self, owner: BlockingConnection, awaited: str, has_come: Callable[[], bool]) -> None:
        deadline = owner.deadline()
        while not has_come():
            self._take(owner, owner.receive(deadline, awaited))

    def _take(self, connection: BlockingConnection, frame: Frame) -> None:
        """Process a pushed command."""
        command = frame.command
        if command.type == _T.MESSAGE:
            self._is_stale(connection, command.message.consumer_id)
        elif command.type == _T.REACHED_END_OF_TOPIC:
            self._is_stale(connection, command.reached_end_of_topic.consumer_id)
        elif command.type == _T.CLOSE_CONSUMER:
            followed = self._consumers.pop((id(connection), command.close_consumer.consumer_id), None)
            if followed is not None:
                followed.owner = followed.armed_at = None
                followed.is_stale = self._has_news = True
        elif command.type == _T.SCALABLE_TOPIC_UPDATE:
            for topic in tuple(self._topics.values()):
                if topic.owner is connection and topic.session_id == command.scalable_topic_update.session_id:
                    self._has_news = True
                    layout = layout_of(connection, topic.name, command.scalable_topic_update)
                    # A broker's first push may be older. It pushes the newest layout soon.
                    if layout.succession(topic.layout) is not Succession.STALE:
                        topic.layout = layout
                        topic.parts = {part.name or "": part for part in layout.segments.values()}
        elif command.type == _T.WATCH_SCALABLE_TOPICS_UPDATE and self._options.pattern is not None:
            update = command.watch_scalable_topics_update
            added, removed = came_and_went(connection, update, self._options.pattern)
            for name in added:
                # The name may now belong to a new topic, after the old one was deleted.
                self._topics.pop(name, None)
            before = set() if update.HasField("snapshot") or self._matching is None else self._matching
            self._matching = (before | set(added)) - set(removed)
            self._has_news = True

    def _is_stale(self, connection: BlockingConnection, consumer_id: int) -> None:
        followed = self._consumers.get((id(connection), consumer_id))
        if followed is not None:
            followed.is_stale = self._has_news = True
