"""When a run measures: not during its warm-up, and not after its end.

Work belongs to the run by when it was due. With a rate, that is the moment at which the clock said to begin, not the
moment at which the program got to it. Otherwise a broker that stalls would also hold back the measurement of its stall
(coordinated omission). Throughput counts what was finished within the time.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from tidewire.cli.bench.report import Series


class Measuring:
    """One run: a warm-up, then `seconds` that count."""

    def __init__(self, names: Sequence[str], *, warm_up_seconds: float, seconds: float) -> None:
        """Begin now, on the event loop's clock, to measure work of these names."""
        self.series: Final = {name: Series(name) for name in names}
        self.done = 0
        """What was finished within the time that counts."""
        self.bytes = 0
        self._from = anyio.current_time() + warm_up_seconds
        self.upto: Final = self._from + seconds
        """The end, on the event loop's clock."""

    @property
    def seconds(self) -> float:
        """How long it has measured."""
        return max(0.0, min(anyio.current_time(), self.upto) - self._from)

    def took(self, name: str, due: float, begun: float | None = None) -> None:
        """Work of that name, which was due then, is finished now. A part of it took the time since it had `begun`."""
        if self._from <= due < self.upto:
            self.series[name].timeline.add(due - self._from, anyio.current_time() - (due if begun is None else begun))

    def count(self, done: int, size: int) -> None:
        """That many more are finished now, with `size` bytes of messages."""
        if self._from <= anyio.current_time() < self.upto:
            self.done += done
            self.bytes += size

    async def until_over(self) -> None:
        """Return at the end of the time that counts."""
        await anyio.sleep_until(self.upto)

    def progress(self) -> str:
        """Where the run is, for a terminal."""
        now = anyio.current_time()
        if now < self._from:
            return f"warming up, {self._from - now:.0f} s more"
        return f"measuring, {max(0.0, self.upto - now):.0f} s more, {self.done:,} done"
