"""What happens in a run, on the terminal and in a file: each line begins with the seconds since the begin."""

from pathlib import Path

import trio


class Logbook:
    """Times are those of the schedule, once `begin` was called."""

    def __init__(self, path: Path, *, prints: bool) -> None:
        self._path = path
        self._prints = prints
        self._begun = trio.current_time()
        self.complaints: list[str] = []

    def begin(self) -> None:
        """Let this moment be zero."""
        self._begun = trio.current_time()

    def say(self, text: str) -> None:
        """Note a line."""
        line = f"{trio.current_time() - self._begun:7.1f} s  {text}"
        with self._path.open("a", encoding="utf-8") as book:
            print(line, file=book)
        if self._prints:
            print(line, flush=True)

    def complain(self, text: str) -> None:
        """Note a broken promise."""
        self.complaints.append(text)
        self.say(f"COMPLAINT: {text}")
