"""Reports each segment's load to the metadata store when it has changed noticeably (PIP-483).

A segment's owner samples its counters and keeps a minute of samples. So a rate is an average over the last minute, and
a short burst does not count as load. The owner writes a record when a rate has changed by a quarter since the last
record, so steady traffic is reported once. The broker that decides on splits watches the records. They are ephemeral,
so a broker that has ended leaves none.

Sampling begins with the first message, and ends after a minute without messages. After that nothing runs until the next
message.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import unquote

import orjson
import structlog
import trio

from broker.cluster.broker_load import SAMPLES_KEPT, has_changed
from broker.names import Domain, InvalidTopicName, TopicName
from broker.own_load import OwnLoad
from broker.scalable.autoscale import SegmentLoad
from broker.topic import Topic
from broker.traffic import LOAD_PREFIX, SegmentTraffic, load_key
from storage.clock import WallClock
from storage.metadata.store import Delete, MetadataError, MetadataStore, Op, Put, Session
from storage.signal import Signal

SAMPLE_SECONDS: Final = 10
"""The sampling interval while there is traffic."""
RATES_MIN: Final = (10.0, 50_000.0, 10.0, 50_000.0)
"""Lower rates (messages and bytes in, messages and bytes out) count as these, so almost idle segments are not
reported."""
REPORTS_AT_ONCE: Final = 64
"""Records in one change set; every store takes this many."""

log = structlog.get_logger(__name__)


class _Rates(NamedTuple):
    """Rates per second."""

    msg_in: float
    bytes_in: float
    msg_out: float
    bytes_out: float


_NO_RATES: Final = _Rates(0, 0, 0, 0)


@dataclass(eq=False, slots=True)
class _Sampled:
    """One segment: samples of its counters, oldest first, and its last report."""

    counts: deque[SegmentTraffic] = field(
        default_factory=lambda: deque([SegmentTraffic()] * (SAMPLES_KEPT + 1), SAMPLES_KEPT + 1)
    )
    reported: _Rates | None = None
    """The report in the store; None if there is none or it is unknown."""

    def take(self, traffic: SegmentTraffic) -> _Rates:
        """Take a sample. Return the rates since the oldest sample."""
        self.counts.append(traffic.copy())
        first, last = self.counts[0], self.counts[-1]
        seconds = SAMPLE_SECONDS * SAMPLES_KEPT
        return _Rates(
            (last.messages_in - first.messages_in) / seconds,
            (last.bytes_in - first.bytes_in) / seconds,
            (last.messages_out - first.messages_out) / seconds,
            (last.bytes_out - first.bytes_out) / seconds,
        )


class LoadReporter:
    """Reports the load of this broker's active segments while `run` runs."""

    def __init__(
        self,
        topics: Iterable[Topic],
        activity: Signal,
        own_load: OwnLoad,
        *,
        metadata: MetadataStore,
        session: Session,
        now_ms: WallClock,
    ) -> None:
        """Set up.

        Args:
            topics: iterates over the topics that are loaded at that moment.
            activity: set at every message in or out.
            own_load: the load of the broker as a whole, which is sampled together with its segments.
            metadata: the store of the reports.
            session: the broker's session; the reports end with it.
            now_ms: the clock of the times in reports.
        """
        self._topics = topics
        self._activity = activity
        self._own_load = own_load
        self._metadata = metadata
        self._session = session
        self._now_ms = now_ms
        self._sampled: dict[TopicName, _Sampled] = {}
        self._removing: set[TopicName] = set()
        """Segments whose report must be removed, and may still exist."""

    async def run(self) -> None:
        """Sample and report until cancelled."""
        while True:
            await self._activity.wait()
            self._own_load.begin()
            is_busy = True
            while is_busy:
                await trio.sleep(SAMPLE_SECONDS)
                # Both are sampled each time.
                is_busy = any([await self._sample(), await self._own_load.sample()])

    async def _sample(self) -> bool:
        """Take one sample of every active segment, and report what changed.

        Return True if there was any traffic, or if the store did not take every report.
        """
        due: dict[TopicName, _Rates | None] = {}
        is_busy = False
        loaded = {topic.name: topic for topic in self._topics}
        active = {name: topic for name, topic in loaded.items() if _is_active(topic)}
        for gone in self._sampled.keys() - active.keys():
            last = self._sampled.pop(gone).reported
            # A segment that was unloaded because it is unused counts as cold, so it may be merged.
            if gone in loaded or last is None or has_changed(last, _NO_RATES, RATES_MIN):
                self._removing.add(gone)
        due.update(dict.fromkeys(self._removing))
        for name, topic in active.items():
            sampled = self._sampled.get(name)
            if sampled is None:
                if not topic.traffic.messages_in and not topic.traffic.messages_out:
                    continue
                sampled = self._sampled[name] = _Sampled()
            rates = sampled.take(topic.traffic)
            is_busy = is_busy or rates != _NO_RATES
            if sampled.reported is None or has_changed(sampled.reported, rates, RATES_MIN):
                due[name] = rates
        is_reported = await self._report(due)
        return is_busy or not is_reported

    async def _report(self, due: Mapping[TopicName, _Rates | None]) -> bool:
        """Write these reports; remove those that are None. Return whether the store took all of them."""
        names = list(due)
        is_reported = True
        for first in range(0, len(names), REPORTS_AT_ONCE):
            some = {name: due[name] for name in names[first : first + REPORTS_AT_ONCE]}
            try:
                await self._metadata.commit([self._op(name, rates) for name, rates in some.items()])
            except MetadataError as error:
                # Reports are only advice and are repeated later. Other code ends the broker if the store has ended.
                log.warning("the load of segments was not reported", reason=str(error))
                is_reported = False
                for name in some.keys() & self._sampled.keys():
                    self._sampled[name].reported = None
            else:
                self._removing -= some.keys()
                for name in some.keys() & self._sampled.keys():
                    self._sampled[name].reported = some[name]
        return is_reported

    def _op(self, name: TopicName, rates: _Rates | None) -> Op:
        if rates is None:
            return Delete(load_key(name))
        return Put(load_key(name), _encode(rates, self._now_ms()), session=self._session)


def segment_of(key: str) -> TopicName | None:
    """Return the segment whose load has this key; None if it is not a segment's key."""
    try:
        name = TopicName.parse(unquote(key.removeprefix(LOAD_PREFIX)))
    except InvalidTopicName:
        return None
    return name if name.domain is Domain.SEGMENT else None


def decode_load(value: bytes) -> SegmentLoad | None:
    """Decode a report; None if the value is not one."""
    try:
        raw = orjson.loads(value)
        return SegmentLoad(
            float(raw["msgRateIn"]),
            float(raw["bytesRateIn"]),
            float(raw["msgRateOut"]),
            float(raw["bytesRateOut"]),
            int(raw["sinceMs"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _encode(rates: _Rates, now_ms: int) -> bytes:
    return orjson.dumps(
        {
            "msgRateIn": rates.msg_in,
            "bytesRateIn": rates.bytes_in,
            "msgRateOut": rates.msg_out,
            "bytesRateOut": rates.bytes_out,
            "sinceMs": now_ms,
        }
    )


def _is_active(topic: Topic) -> bool:
    return topic.name.domain is Domain.SEGMENT and not topic.ledger.is_sealed
