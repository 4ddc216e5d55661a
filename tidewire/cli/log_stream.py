"""The stream of the broker's log: standard error, which may be a file on a full disk, or a pipe without a reader.

A line that cannot be written is lost, because a failed write must not end the broker. The next line that can be written
says how many were lost.
"""

from typing import TextIO


class LogStream:
    """A text stream that drops what the system refuses to write, and never raises for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0

    def write(self, text: str) -> int:
        """Write `text`, or count it as lost."""
        try:
            if self._lost:
                self._stream.write(f"{self._lost} earlier lines of this log could not be written and are lost\n")
                self._lost = 0
            self._stream.write(text)
        except OSError:
            self._lost += 1
        return len(text)

    def flush(self) -> None:
        """Flush as much as the system takes. The rest is tried again with the next line."""
        try:
            self._stream.flush()
        except OSError:
            self._lost += 1
