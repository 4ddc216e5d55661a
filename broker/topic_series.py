"""Under which labels each loaded topic is counted, so that counters never fall without reason.

The labels of a topic are chosen when it is loaded, and stay until it is unloaded: its own while there are fewer than
`series_max`, otherwise those of all others. An unloaded topic takes its counters along if nothing else has its labels.
Otherwise they stay in the sum, because Prometheus would take a sum that falls for a restarted broker. Nothing here runs
unless a topic is loaded or unloaded.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker.backlogs import Places
from broker.config import MetricsLabels
from broker.names import TopicName
from broker.series import OTHER_TOPICS, Labels
from broker.topic import Topic
from broker.topics import Topics
from broker.traffic import SegmentTraffic
from broker.unloaded_backlogs import UnloadedBacklogs


@dataclass(eq=False, slots=True)
class LoadedSeries:
    """The loaded topics with one set of labels."""

    labels: Labels
    logs: dict[Topic, Places] = field(default_factory=dict)
    unloaded: SegmentTraffic = field(default_factory=SegmentTraffic)
    """The counters of topics that were unloaded."""


class TopicSeries:
    """See the module's docstring."""

    def __init__(self, topics: Topics, level: MetricsLabels, series_max: int, unloaded: UnloadedBacklogs) -> None:
        """Set up. `unloaded` is told what is unloaded, and forgets what is loaded again."""
        self._topics = topics
        self.unloaded = unloaded
        self._level = level
        self._series_max = series_max
        self._series: dict[Labels, LoadedSeries] = {}
        self._chosen: dict[Topic, tuple[Labels, LoadedSeries]] = {}
        """The labels that each loaded topic would have if there were room, and its series."""
        self._left_out: Counter[Labels] = Counter()
        topics.attach(self._follow)

    def __iter__(self) -> Iterator[LoadedSeries]:
        return iter(tuple(self._series.values()))

    @property
    def left_out(self) -> int:
        """How many series the sum over all others stands for."""
        return len(self._left_out)

    def labels_of(self, name: TopicName) -> Labels:
        """Return the labels that a topic has if there is room."""
        return Labels.of(name, self._level)

    def _follow(self, topic: Topic) -> None:
        self._leave(topic)
        if self._topics.running(topic.name) is topic:
            self._join(topic)

    def _join(self, topic: Topic) -> None:
        self.unloaded.forget(topic.name)
        own = self.labels_of(public_name(topic))
        is_shown = own in self._series or len(self._series) - (OTHER_TOPICS in self._series) < self._series_max
        labels = own if is_shown else OTHER_TOPICS
        if not is_shown:
            self._left_out[own] += 1
        series = self._series.setdefault(labels, LoadedSeries(labels))
        series.logs[topic] = Places(topic)
        self._chosen[topic] = own, series

    def _leave(self, topic: Topic) -> None:
        own, series = self._chosen.pop(topic, (None, None))
        if own is None or series is None:
            return
        self.unloaded.keep(topic, public_name(topic), series.logs.pop(topic))
        if series.labels != OTHER_TOPICS and not series.logs:
            del self._series[series.labels]
            return
        series.unloaded.add(topic.traffic)
        if own in self._left_out and series.labels == OTHER_TOPICS:
            self._left_out[own] -= 1
            if not self._left_out[own]:
                del self._left_out[own]


def public_name(topic: Topic) -> TopicName:
    """Return the name by which users know a log: without its segment or partition."""
    return topic.name.partitioned_topic if topic.scalable_topic is None else topic.scalable_topic
