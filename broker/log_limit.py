"""Limits floods of log lines: the first few of a period are written, the others are counted.

Otherwise a client that repeats a refused request could fill the disk. There are two bounds. The first is on lines of
one kind: with the same event and the same subject (topic, peer, reason). The second is on all lines of one event,
whatever their subject. It holds against a client that uses a new topic in every line, because events are constants of
the code. The number of remembered kinds is bounded.

The counts are written every few seconds during a flood, and once after its end.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
import trio

from storage.signal import Signal

KIND_LINES_MAX: Final = 5
"""Most lines of one kind that are written in one period."""

EVENT_LINES_MAX: Final = 50
"""Most lines of one event that are written in one period."""

PERIOD_SECONDS: Final = 1.0

REPORT_SECONDS: Final = 5.0
"""The interval at which counts are written."""

KINDS_MAX: Final = 1000
"""Most kinds that are remembered at a time. Lines of further kinds have only the bound of their event."""

SUPPRESSED: Final = "log lines suppressed"
"""The event of a line with a count."""

_ABOUT: Final = ("topic", "segment", "subscription", "peer", "method", "reason")
_TEXT_MAX: Final = 200

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Flood:
    """The lines of one kind, or of one event."""

    since: float
    """When the current period began."""
    written: int = 0
    """Lines written in the current period."""
    suppressed: int = 0
    """Lines suppressed since the last count was written."""

    def admits(self, now: float, lines_max: int) -> bool:
        """Whether one more line may be written."""
        if now - self.since >= PERIOD_SECONDS:
            self.since, self.written = now, 0
        if self.written >= lines_max:
            self.suppressed += 1
            return False
        self.written += 1
        return True


class LogLimit:
    """A structlog processor, for any thread; see the module's docstring. `run` writes the counts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Use `clock`, which counts seconds and never goes back."""
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[tuple[str, ...], _Flood] = OrderedDict()
        self._events: dict[tuple[str, str], _Flood] = {}
        self._has_suppressed = Signal()
        self._token: trio.lowlevel.TrioToken | None = None

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass a line on, or suppress it.

        Raises:
            structlog.DropEvent: the line is suppressed.
        """
        name = str(event.get("event"))[:_TEXT_MAX]
        if name == SUPPRESSED:
            return event
        about = (f"{key}={str(event[key])[:_TEXT_MAX]}" for key in _ABOUT if key in event)
        with self._lock:
            now = self._clock()
            flood = self._kind((method, name, *about), now)
            if flood is None or flood.admits(now, KIND_LINES_MAX):
                flood = self._events.setdefault((method, name), _Flood(now))
                if flood.admits(now, EVENT_LINES_MAX):
                    return event
        if self._token is not None:
            self._token.run_sync_soon(self._has_suppressed.set, idempotent=True)
        raise structlog.DropEvent

    async def run(self) -> None:
        """Write the counts until cancelled. While nothing is suppressed, this waits and uses no CPU."""
        self._token = trio.lowlevel.current_trio_token()
        try:
            while True:
                await self._has_suppressed.wait()
                await trio.sleep(REPORT_SECONDS)
                self.report()
        finally:
            self._token = None
            self.report()

    def report(self) -> None:
        """Write all counts, a line for each event."""
        counts: dict[str, int] = {}
        with self._lock:
            for (_method, name, *_about), flood in (*self._kinds.items(), *self._events.items()):
                if flood.suppressed:
                    counts[name] = counts.get(name, 0) + flood.suppressed
                    flood.suppressed = 0
        for name, count in counts.items():
            log.warning(SUPPRESSED, like=name, count=count)

    def _kind(self, kind: tuple[str, ...], now: float) -> _Flood | None:
        flood = self._kinds.get(kind)
        if flood is None:
            while self._kinds and self._is_over(next(iter(self._kinds.values())), now):
                self._kinds.popitem(last=False)
            if len(self._kinds) >= KINDS_MAX:
                return None
            flood = self._kinds[kind] = _Flood(now)
        self._kinds.move_to_end(kind)
        return flood

    @staticmethod
    def _is_over(flood: _Flood, now: float) -> bool:
        return now - flood.since >= PERIOD_SECONDS and not flood.suppressed
