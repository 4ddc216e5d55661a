"""Implements the contract of live numbers, from the topics that are loaded, and from those that were unloaded here."""

from collections.abc import Iterable, Iterator, Sequence

from broker.live_contract import LiveLog
from broker.live_log import live_log
from broker.names import TopicName
from broker.topic import Topic
from broker.unloaded_backlogs import UnloadedBacklogs
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

    def unread(self) -> Sequence[tuple[TopicName, str]]:
        """See `LiveService`."""
        consumed: set[tuple[TopicName, str]] = set()
        left: set[tuple[TopicName, str]] = set()
        for log in self._topics:
            for name, subscription in log.subscriptions.items():
                if subscription.consumers:
                    consumed.add((_topic_of(log), name))
                elif subscription.backlog_entries:
                    left.add((_topic_of(log), name))
        for unloaded in self._unloaded:
            for name, seen in self._unloaded.seen(unloaded).subscriptions.items():
                if seen.backlog:
                    left.add((unloaded.public_name, name))
        return sorted(left - consumed, key=lambda one: (str(one[0]), one[1]))


def _topic_of(log: Topic) -> TopicName:
    return log.scalable_topic or log.name.partitioned_topic
