"""How busy a broker is: what it reports about itself, and when a new report is due. Pure.

    /broker-load/<broker id>    {busy, bytesIn, bytesOut, topics}; ephemeral

A broker reports averages of the last minute, and only what has changed noticeably. So the reports may be a minute old.
They advise placement (`broker.cluster.placement`), and nothing is decided by them.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import orjson

BROKER_LOADS: Final = "/broker-load/"
SAMPLES_KEPT: Final = 6
"""The number of samples that an average covers: a minute."""
CHANGE_MIN: Final = 0.25
"""The fraction by which a value must have changed to be reported again."""
VALUES_MIN: Final = (0.05, 50_000.0, 50_000.0, 10.0)
"""Lower values of each field count as these, so an almost idle broker is not reported."""


class BrokerLoad(NamedTuple):
    """The load of one broker."""

    busy: float
    """The part of one core that its event loop uses. At 1.0 it can take no more."""
    bytes_in: float
    """Bytes per second that its clients publish."""
    bytes_out: float
    """Bytes per second that it sends to consumers."""
    topics: int
    """Loaded segments and regular topics."""

    def encode(self) -> bytes:
        """As JSON."""
        return orjson.dumps(
            {"busy": self.busy, "bytesIn": self.bytes_in, "bytesOut": self.bytes_out, "topics": self.topics}
        )

    @classmethod
    def decode(cls, value: bytes) -> "BrokerLoad | None":
        """Undo `encode`; None if the value is something else. Unknown fields are ignored."""
        try:
            raw = orjson.loads(value)
            return cls(float(raw["busy"]), float(raw["bytesIn"]), float(raw["bytesOut"]), int(raw["topics"]))
        except (KeyError, TypeError, ValueError):
            return None

    def differs(self, reported: "BrokerLoad") -> bool:
        """Return whether a value has changed noticeably since a report."""
        return has_changed(reported, self, VALUES_MIN)


IDLE: Final = BrokerLoad(0, 0, 0, 0)
"""The load of a broker that has reported none."""


def has_changed(reported: Iterable[float], now: Iterable[float], leasts: Iterable[float]) -> bool:
    """Return whether one of some values has changed noticeably. Lower values than its least count as that."""
    values = zip(reported, now, leasts, strict=True)
    return any(abs(new - old) > CHANGE_MIN * max(old, least) and max(old, new) > least for old, new, least in values)


class _Counted(NamedTuple):
    cpu_seconds: float
    bytes_in: int
    bytes_out: int


class LoadWindow:
    """Makes averages over the last SAMPLES_KEPT samples, of counters that never fall."""

    def __init__(self, sample_seconds: float) -> None:
        """Set up; `sample_seconds` is the time between two samples."""
        self._seconds = sample_seconds * SAMPLES_KEPT
        self._counts: deque[_Counted] = deque(maxlen=SAMPLES_KEPT + 1)

    def begin(self, cpu_seconds: float, bytes_in: int, bytes_out: int) -> None:
        """Begin with these counters. Whatever they counted before is forgotten."""
        self._counts.extend([_Counted(cpu_seconds, bytes_in, bytes_out)] * (SAMPLES_KEPT + 1))

    def take(self, cpu_seconds: float, bytes_in: int, bytes_out: int, topics: int) -> BrokerLoad:
        """Take a sample of the counters. Return the load since the oldest one."""
        self._counts.append(_Counted(cpu_seconds, bytes_in, bytes_out))
        first, last = self._counts[0], self._counts[-1]
        return BrokerLoad(
            (last.cpu_seconds - first.cpu_seconds) / self._seconds,
            (last.bytes_in - first.bytes_in) / self._seconds,
            (last.bytes_out - first.bytes_out) / self._seconds,
            topics,
        )
