"""Where the broker's log goes: standard error, which may be a file on a disk that is full, or a pipe that nobody reads.

A line that cannot be written is lost; it must not end the broker that wrote it. How many were lost is told by the next
one that can be.
"""

from typing import TextIO


class LogStream:
    """A text stream that never raises because the system refuses what is written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> int:
        """Write, or count what could not be."""
        try:
            if self._lost:
                self._stream.write(f"{self._lost} earlier lines of this log could not be written\n")
                self._lost = 0
            self._stream.write(text)
        except OSError:
            self._lost += 1
        return len(text)

    def flush(self) -> None:
        """Pass on what is buffered, as far as the system takes it; it is passed on again with the next line."""
        try:
            self._stream.flush()
        except OSError:
            self._lost += 1
