"""The metrics of topics, subscriptions and groups: a row for each, with its labels.

Their names begin with `tidewire_`, because Pulsar's have no units, and Kafka's depend on who exports them.
docs/operations/metrics.md says which names of Pulsar and Kafka they stand for.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.series import Labels, ReaderSums, Series, TopicSums

Sums = TypeVar("Sums")


class _Row(NamedTuple):
    """One metric."""

    name: str
    help: str


_TOPICS: Final[Mapping[_Row, Callable[[TopicSums], float]]] = {
    _Row("logs", "Segments or partitions loaded"): lambda sums: sums.logs,
    _Row("producers", "Producers connected"): lambda sums: sums.producers,
    _Row("consumers", "Consumers and readers connected"): lambda sums: sums.consumers,
    _Row("in_messages_total", "Messages published"): lambda sums: sums.traffic.messages_in,
    _Row("in_bytes_total", "Bytes published"): lambda sums: sums.traffic.bytes_in,
    _Row("out_messages_total", "Messages sent to consumers"): lambda sums: sums.traffic.messages_out,
    _Row("out_bytes_total", "Bytes sent to consumers"): lambda sums: sums.traffic.bytes_out,
    _Row("stored_bytes", "Bytes stored"): lambda sums: sums.stored_bytes,
    _Row("held_messages", "Durable messages that open transactions hold back"): lambda sums: sums.held_messages,
    _Row("held_seconds", "Age of the oldest message that an open transaction holds back"): lambda sums: (
        sums.held_seconds
    ),
}

_BACKLOGS: Final[Mapping[_Row, Callable[[ReaderSums], float]]] = {
    _Row("messages", "Messages from the oldest unread one to the end"): lambda sums: sums.backlog_messages,
    _Row("bytes", "Stored bytes from the oldest unread message to the end"): lambda sums: sums.backlog_bytes,
    _Row("seconds", "Age of the oldest unread message"): lambda sums: sums.backlog_seconds,
}

_SUBSCRIPTIONS: Final[Mapping[_Row, Callable[[ReaderSums], float]]] = {
    **{_Row(f"backlog_{row.name}", row.help): value for row, value in _BACKLOGS.items()},
    _Row("backlog_entries", "Entries not acknowledged; a batch is one entry"): lambda sums: sums.backlog_entries,
    _Row("consumers", "Consumers connected, on each segment or partition"): lambda sums: sums.consumers,
    _Row("unacked_messages", "Messages sent and not acknowledged, if it is shared"): lambda sums: sums.unacked_messages,
}

_GROUPS: Final[Mapping[_Row, Callable[[ReaderSums], float]]] = {
    _Row(f"lag_{row.name}", row.help): value for row, value in _BACKLOGS.items()
}


def of_series(series: Series) -> Iterator[Metric]:
    """Yield the metrics of all series."""
    yield from _families("tidewire_topic_", _TOPICS, series.topics, "")
    yield from _families("tidewire_subscription_", _SUBSCRIPTIONS, series.subscriptions, "subscription")
    yield from _families("tidewire_group_", _GROUPS, series.groups, "group")
    left_out = GaugeMetricFamily(
        "tidewire_series_left_out", "Series summed under (others); see --metrics-series-max", labels=["kind"]
    )
    for kind, count in series.left_out.items():
        left_out.add_metric([kind], count)
    yield left_out
    yield GaugeMetricFamily(
        "tidewire_backlogs_unreadable",
        "Backlogs left out because their oldest message, or what they hide, is not known",
        series.unreadable,
    )


def _families(
    prefix: str, rows: Mapping[_Row, Callable[[Sums], float]], found: Mapping[Labels, Sums], reader: str
) -> Iterator[Metric]:
    labelled = [(_shown(labels, reader), sums) for labels, sums in found.items()]
    for row, value in rows.items():
        name = prefix + row.name
        family = Metric(name.removesuffix("_total"), row.help, "counter" if name.endswith("_total") else "gauge")
        for labels, sums in labelled:
            family.add_sample(name, labels, value(sums))
        yield family


def _shown(labels: Labels, reader: str) -> dict[str, str]:
    named = {"namespace": labels.namespace, "topic": labels.topic, reader: labels.reader}
    return {name: value for name, value in named.items() if value}
