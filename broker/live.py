"""Implements the contract of live numbers, from the topics that are loaded, and from those that were unloaded here."""

from collections.abc import Iterable, Iterator

import trio

from broker.live_contract import LiveLog
from broker.live_log import live_log
from broker.names import TopicName
from broker.topic import Topic
from broker.unloaded_backlogs import UnloadedBacklogs
from broker.unread import Left, Name, Unread
from storage.signal import Bell


class Live:
    """Implements `LiveService`."""

    def __init__(self, topics: Iterable[Topic], unloaded: UnloadedBacklogs, changes: Bell) -> None:
        """Set up; `topics` iterates over the topics that are loaded at that moment."""
        self._topics = topics
        self._unloaded = unloaded
        self.changes = changes

    def logs(self, topic: TopicName | None = None) -> Iterator[LiveLog]:
        """See `LiveService`."""
        for each in self._topics:
            if topic is None or _topic_of(each) == topic:
                yield live_log(each, each.readings)
        for unloaded in self._unloaded:
            if topic is None or unloaded.public_name == topic:
                yield self._unloaded.seen(unloaded)

    def unread(self) -> Unread:
        """See `LiveService`."""
        consumed: dict[Name, bool] = {}
        left: dict[Name, Left] = {}

        def leave(name: Name, one: Left) -> None:
            left[name] = left[name] + one if name in left else one

        for log in self._topics:
            topic, is_spread = str(_topic_of(log)), _is_spread(log.name)
            for name, subscription in log.subscriptions.items():
                if subscription.consumers:
                    consumed[topic, name] = is_spread
                elif entries := subscription.backlog_entries:
                    grew = log.readable.value > subscription.unread_from
                    away_seconds = trio.current_time() - subscription.unread_since
                    leave((topic, name), Left(entries, grew, is_spread, away_seconds))
        for unloaded in self._unloaded:
            for name, seen in self._unloaded.seen(unloaded).subscriptions.items():
                if seen.backlog:
                    # Nobody publishes to a log that is not loaded.
                    leave((str(unloaded.public_name), name), Left(seen.backlog, False, _is_spread(unloaded.name)))
        return Unread(
            left={name: one for name, one in left.items() if name not in consumed},
            consumed=[name for name, is_spread in consumed.items() if is_spread],
        )


def _is_spread(log: TopicName) -> bool:
    return log.segment is not None or log.partition_index is not None


def _topic_of(log: Topic) -> TopicName:
    return log.scalable_topic or log.name.partitioned_topic
