"""Which layouts the clients of every broker have, in the metadata store.

    /layout-followers/<tenant>/<namespace>/<topic>/<broker>    {epoch, creation_id}; ephemeral

The owner of a replaced segment seals it once the clients of all brokers know the children. Clients of its own broker
are in this process (`broker.scalable.feeds`). For the others, each broker with followers of a topic writes down what it
has pushed. It writes before its first push, so no broker has followers that an owner cannot see.

The record is a courtesy: a client that is late gets its sends refused, and looks the layout up again. So an owner waits
for a bounded time, and a record that cannot be written delays nothing else. A broker that is alone writes none.
"""

from typing import Final
from urllib.parse import quote

import orjson
import structlog
import trio

from broker.cluster.members import Members
from broker.layouts.layout import Layout
from broker.names import TopicName
from broker.store_retry import RETRY_SECONDS
from storage.metadata.store import (
    Delete,
    MetadataStore,
    Op,
    Put,
    Record,
    Session,
    SessionLost,
    StoreUnavailable,
    starting_with,
)

KEY_PREFIX: Final = "/layout-followers/"

WAIT_SECONDS_MAX: Final = 5.0
"""How long an owner waits for the clients of other brokers. A stopped broker pushes nothing until its session ends."""

RECORDS_AT_ONCE: Final = 64
"""Records in one change set; every store takes this many."""

log = structlog.get_logger(__name__)

_Pushed = tuple[int, str]
"""The epoch and creation id of the layout that all followers here have."""

_NOTHING_PUSHED: Final[_Pushed] = (-1, "")


def followers_of(topic: TopicName) -> str:
    """Return the prefix of the keys of a topic's records."""
    return f"{KEY_PREFIX}{topic.tenant}/{topic.namespace}/{quote(topic.local, safe='')}/"


class LayoutFollowers:
    """Writes this broker's records, and reads those of the others."""

    def __init__(
        self, metadata: MetadataStore, session: Session, members: Members, nursery: trio.Nursery, *, me: str
    ) -> None:
        """Set up.

        Args:
            metadata: the store of the records.
            session: the records end with it.
            members: they tell whether this broker is alone.
            nursery: runs the writes.
            me: the id of this broker.
        """
        self._metadata = metadata
        self._session = session
        self._members = members
        self._nursery = nursery
        self._me = me
        self._pushed: dict[TopicName, _Pushed] = {}
        self._written: dict[TopicName, _Pushed] = {}
        """What the records say, or may say."""
        self._unwritten: dict[TopicName, None] = {}
        self._refused: set[TopicName] = set()
        """Those of them that were tried in vain. Nobody waits for them."""
        self._is_writing = False
        self._round = trio.Event()
        """Set, and replaced, when a round of writes has ended, whether it succeeded or not."""
        members.attach(self._members_changed)

    async def begin(self, topic: TopicName) -> None:
        """Write down that this broker will push the topic's layout. The caller reads the layout after that."""
        self._pushed[topic] = _NOTHING_PUSHED
        self._note(topic)
        # A round that is under way may be about other topics.
        while self._is_writing and topic in self._unwritten and topic not in self._refused:
            await self._round.wait()

    def pushed(self, topic: TopicName, layout: Layout | None) -> None:
        """Note that every follower here has this layout, or knows that there is none."""
        self._pushed[topic] = _NOTHING_PUSHED if layout is None else (layout.epoch, layout.creation_id)
        self._note(topic)

    def end(self, topic: TopicName) -> None:
        """Note that the topic has no follower here any more."""
        self._pushed.pop(topic, None)
        self._note(topic)

    async def reached(self, topic: TopicName, layout: Layout) -> None:
        """Wait until the followers of all other brokers have this layout or a later one, for a bounded time."""
        missing: set[str] = set()
        with trio.move_on_after(WAIT_SECONDS_MAX) as waiting:
            async with self._metadata.watch_range(*starting_with(followers_of(topic))) as watch:
                while True:
                    change = await watch.next()
                    missing.difference_update(change.deleted)
                    for record in change.records:
                        if record.key != self._key(topic) and _lacks(record, layout):
                            missing.add(record.key)
                        else:
                            missing.discard(record.key)
                    if not missing:
                        return
        if waiting.cancelled_caught:
            log.warning(
                "clients of other brokers may not know a new layout yet",
                topic=str(topic),
                epoch=layout.epoch,
                brokers=sorted(key.rsplit("/", 1)[1] for key in missing),
            )

    def _members_changed(self) -> None:
        if self._is_alone:
            return
        for topic in self._pushed:
            self._note(topic)

    @property
    def _is_alone(self) -> bool:
        return len(self._members.live) <= 1

    def _key(self, topic: TopicName) -> str:
        return followers_of(topic) + self._me

    def _note(self, topic: TopicName) -> None:
        if self._pushed.get(topic) == self._written.get(topic):
            return
        if self._is_alone and topic not in self._written:
            return
        self._unwritten[topic] = None
        if not self._is_writing:
            self._is_writing = True
            self._nursery.start_soon(self._write_all)

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                topics = list(self._unwritten)[:RECORDS_AT_ONCE]
                try:
                    await self._write(topics)
                except SessionLost:
                    # The records ended with the session, and the broker turns its clients away.
                    return
                except StoreUnavailable as unavailable:
                    log.warning("it is not on record which layouts clients have", reason=str(unavailable))
                    self._refused.update(self._unwritten)
                    self._end_round()
                    await trio.sleep(RETRY_SECONDS)
                else:
                    self._end_round()
        finally:
            self._is_writing = False
            self._end_round()

    async def _write(self, topics: list[TopicName]) -> None:
        ops: list[Op] = []
        pushed = {topic: self._pushed.get(topic) for topic in topics}
        for topic, what in pushed.items():
            if what is None:
                ops.append(Delete(self._key(topic)))
            else:
                # Even if the answer is lost, the record may exist.
                self._written.setdefault(topic, _NOTHING_PUSHED)
                value = orjson.dumps({"epoch": what[0], "creation_id": what[1]})
                ops.append(Put(self._key(topic), value, session=self._session))
        await self._metadata.commit(ops)
        self._refused.difference_update(topics)
        for topic, what in pushed.items():
            if what is None:
                self._written.pop(topic, None)
            else:
                self._written[topic] = what
            if self._pushed.get(topic) == what:
                self._unwritten.pop(topic, None)

    def _end_round(self) -> None:
        ended, self._round = self._round, trio.Event()
        ended.set()


def _lacks(record: Record, layout: Layout) -> bool:
    """Return whether a broker's followers may have an older layout than this one."""
    try:
        value = orjson.loads(record.value)
        epoch, creation_id = int(value["epoch"]), str(value["creation_id"])
    except (KeyError, TypeError, ValueError):
        log.error("it cannot be read which layout a broker's clients have", key=record.key)
        return False
    return creation_id != layout.creation_id or epoch < layout.epoch
