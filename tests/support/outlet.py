"""A consumer's outlet that records what it was sent. A test decides whether it is writable.

outlet = RecordingOutlet()
outlet.writable = False       # a slow consumer
outlet.writable = True        # sets the attached signals
outlet.positions, outlet.deliveries, outlet.ends
"""

from collections.abc import Sequence

from dispatch.consumer import Consumer, Delivery
from storage.position import Position
from storage.signal import Signal


class RecordingOutlet:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.ends = 0
        self.disconnections = 0
        self.active: list[bool] = []
        self.damages: list[str] = []
        self._is_writable = True
        self._signals: list[Signal] = []

    @property
    def writable(self) -> bool:
        """Whether more may be sent."""
        return self._is_writable

    @writable.setter
    def writable(self, value: bool) -> None:
        self._is_writable = value
        if value:
            for signal in self._signals:
                signal.set()

    @property
    def positions(self) -> list[Position]:
        """The positions of everything sent, in order."""
        return [delivery.entry.position for delivery in self.deliveries]

    @property
    def is_attached(self) -> bool:
        """Whether a signal is attached."""
        return bool(self._signals)

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Record the deliveries."""
        assert deliveries, "nothing is not sent"
        self.deliveries.extend(deliveries)

    def end_of_topic(self) -> None:
        """Count it."""
        self.ends += 1

    def active_changed(self, *, is_active: bool) -> None:
        """Record it."""
        self.active.append(is_active)

    def damaged(self, reason: str) -> None:
        """Record it."""
        self.damages.append(reason)

    def disconnected(self) -> None:
        """Count it."""
        self.disconnections += 1

    def attach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._signals.append(signal)

    def detach(self, signal: Signal) -> None:
        """See `Outlet`."""
        self._signals.remove(signal)


def recording_consumer(name: str = "c", *, priority: int = 0) -> tuple[Consumer, RecordingOutlet]:
    """Return a consumer without permits, and its outlet."""
    outlet = RecordingOutlet()
    return Consumer(1, name, outlet, priority=priority), outlet
