"""One line on standard error that shows how far a command is, written anew every second. Only on a terminal.

Everything else that is written meanwhile goes through the same object, so that it stands on lines of its own.
"""

import sys
from collections.abc import Callable
from typing import Final, TextIO

import anyio

SECONDS_BETWEEN: Final = 1.0
"""How often the line is written."""

_ERASE: Final = "\r\x1b[K"


class LiveLine:
    """See the module's docstring."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """A line on `stream`, by default standard error. On anything but a terminal, only `say` writes."""
        self._stream = sys.stderr if stream is None else stream
        self.is_shown = self._stream.isatty()
        """Whether the line is written."""
        self._is_there = False

    def say(self, text: str) -> None:
        """Write a line that stays."""
        self.clear()
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def show(self, text: str) -> None:
        """Replace the line."""
        if self.is_shown:
            self._stream.write(f"{_ERASE}{text}")
            self._stream.flush()
            self._is_there = True

    def clear(self) -> None:
        """Remove the line, because something else is to be written on the terminal."""
        if self._is_there:
            self._stream.write(_ERASE)
            self._stream.flush()
            self._is_there = False

    async def keep(self, text: Callable[[], str]) -> None:
        """Write `text()` every second until cancelled; nothing on anything but a terminal."""
        try:
            while self.is_shown:
                await anyio.sleep(SECONDS_BETWEEN)
                self.show(text())
        finally:
            self.clear()


class Rate:
    """Counts messages and their bytes, and tells the rate since it was last asked, and over all."""

    def __init__(self) -> None:
        """Begin now, on the event loop's clock."""
        self._begun = self._asked = anyio.current_time()
        self.messages = 0
        self.bytes = 0
        self._messages_then = 0
        self._bytes_then = 0

    def count(self, size: int) -> None:
        """One more message, of `size` bytes."""
        self.messages += 1
        self.bytes += size

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return anyio.current_time() - self._begun

    def now(self) -> str:
        """The total, and the rate since the last call."""
        now = anyio.current_time()
        seconds = max(now - self._asked, 1e-9)
        messages, size = self.messages - self._messages_then, self.bytes - self._bytes_then
        self._asked, self._messages_then, self._bytes_then = now, self.messages, self.bytes
        return f"{self.messages:,} messages, {messages / seconds:,.0f}/s, {size / seconds / 1e6:,.2f} MB/s"

    def whole(self) -> str:
        """The total, and the rate over all of it."""
        seconds = self.seconds
        each = f" ({self.messages / seconds:,.0f}/s, {self.bytes / seconds / 1e6:,.2f} MB/s)" if seconds > 0 else ""
        return f"{self.messages:,} message{'' if self.messages == 1 else 's'} in {seconds:.1f} s{each}"
