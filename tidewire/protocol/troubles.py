"""What keeps a client's work from going on at the moment. Pure.

Clients retry what may pass: a lost connection, a full disk. Each part of the work reports such an error here while it
retries, and takes it back once it goes on. So a program can show why nothing happens, and when that is over.

Several parts usually fail for one reason. `current` is the trouble of the part that failed first, until that part goes
on. So what is shown does not alternate between parts.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from tidewire.protocol.errors import TidewireError


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why some work does not go on."""

    error: TidewireError
    """The newest failed attempt."""
    since_seconds: float
    """When the first attempt failed, on the clock of `Troubles`."""


def _nobody_waits() -> None:
    """For programs that only look at `Troubles.current`."""


class Troubles:
    """The troubles of one piece of work, by the part that has them; at most one for each part."""

    def __init__(
        self,
        clock: Callable[[], float],
        changed: Callable[[], None] = _nobody_waits,
        *,
        whole: "Troubles | None" = None,
    ) -> None:
        """Begin without trouble.

        Args:
            clock: the time in seconds.
            changed: called after each change of `current`.
            whole: the troubles of a larger piece of work, which this one is a part of.
        """
        self._clock: Final = clock
        self._changed: Final = changed
        self._whole: Final = whole
        self._by_part: dict[Hashable, Trouble] = {}

    @property
    def current(self) -> Trouble | None:
        """Why the work does not go on; None while it does."""
        return next(iter(self._by_part.values()), None)

    def of(self, part: Hashable) -> Trouble | None:
        """Why `part` does not go on; None while it does."""
        return self._by_part.get(part)

    def met(self, part: Hashable, error: TidewireError) -> None:
        """An attempt of `part` failed, and it will try again."""
        before = self.current
        known = self._by_part.get(part)
        self._by_part[part] = Trouble(error, self._clock() if known is None else known.since_seconds)
        self._tell(before)
        if self._whole is not None:
            self._whole.met(part, error)

    def over(self, part: Hashable) -> None:
        """`part` goes on, or has ended. No effect if it had no trouble."""
        before = self.current
        self._by_part.pop(part, None)
        self._tell(before)
        if self._whole is not None:
            self._whole.over(part)

    def _tell(self, before: Trouble | None) -> None:
        if self.current is not before:
            self._changed()
