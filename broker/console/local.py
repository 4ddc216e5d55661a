"""What only a broker itself knows: its counters, and those of the logs that it serves.

The console of another broker asks for it as a stream of JSON lines. So any broker shows the whole cluster.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict

import trio

from broker.administration_contract import BrokerMonitor, LatencyCounts
from broker.console.feed import Parts
from broker.console.reading import Facts, facts_of, joined
from broker.live_contract import LiveLog, LiveService
from broker.names import TopicName
from storage.histogram import BOUNDS_SECONDS
from storage.signal import Signal


class Local:
    """A feed of what this broker knows. `parts` says what of it."""

    def __init__(self, live: LiveService, parts: Callable[[], Parts]) -> None:
        """Set up; `parts` is looked at again after each of the broker's changes."""
        self.changed = Signal()
        self.parts = parts
        self._live = live

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled."""
        with self._live.changes.attached(self.changed):
            task_status.started()
            await trio.sleep_forever()


def broker_parts(monitor: BrokerMonitor, live: LiveService) -> Parts:
    """What the broker counts as a whole, and the subscriptions that nobody reads here."""
    statistics = monitor.statistics()
    counted = asdict(statistics)
    loop = counted.pop("loop")
    del counted["latencies"]
    # Steps of the event loop are counted all the time. They would make a frame of every look.
    return {
        "counters": counted,
        "latencies": _latencies(statistics.latencies),
        "bounds_ms": [1000 * bound for bound in BOUNDS_SECONDS],
        "stall_ms": round(1000 * loop["wall_seconds_max"]),
        "problem": monitor.problem(),
        "unread": live.unread().as_json(),
    }


def _latencies(counted: Mapping[tuple[str, str], LatencyCounts]) -> dict[str, list[int]]:
    """Return how many durations there were for each bucket, of the clients of all protocols together."""
    sums: dict[str, list[int]] = {}
    for (what, _protocol), one in counted.items():
        if one.counts:
            sums[what] = [sum(pair) for pair in zip(sums.get(what, [0] * len(one.counts)), one.counts, strict=True)]
    return sums


def log_parts(live: LiveService, topic: TopicName) -> Parts:
    """The logs of one topic."""
    return {"logs": {str(log.name): _log_view(log) for log in live.logs(topic)}}


def subscription_parts(live: LiveService) -> Parts:
    """All subscriptions, by topic and name, over the logs of this broker."""
    found: dict[str, Facts] = {}
    for log in live.logs():
        for name, subscription in log.subscriptions.items():
            key, facts = f"{log.topic} {name}", facts_of(log, name, subscription)
            found[key] = joined(found[key], facts) if key in found else facts
    return {"subscriptions": found}


def _log_view(log: LiveLog) -> Mapping[str, object]:
    return {
        "messages_in": log.messages_in,
        "bytes_in": log.bytes_in,
        "messages_out": log.messages_out,
        "bytes_out": log.bytes_out,
        "first": log.first_index,
        "end": log.end_index,
        "readable": log.readable_index,
        "producers": log.producers,
        "subscriptions": {
            name: {
                "type": one.type,
                "backlog": one.backlog,
                "consumers": [consumer._asdict() for consumer in one.consumers],
            }
            for name, one in log.subscriptions.items()
        },
    }


def end_parts(live: LiveService, topics: Collection[TopicName]) -> Parts:
    """Where the logs of these topics end for readers, by the topic's own name and the log's number, as Kafka counts."""
    ends: dict[str, dict[str, int]] = {}
    for topic in topics:
        for log in live.logs(topic):
            number = (log.name.partition_index or 0) if log.name.segment is None else log.name.segment.segment_id
            ends.setdefault(topic.local, {})[str(number)] = log.readable_index
    return {"ends": ends}
