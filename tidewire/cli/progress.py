"""A bar for what takes long, where there is a terminal to show it; it goes to standard error and leaves nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

QUIET_SECONDS: Final = 0.5
"""No bar is shown before that, so that what is quick does not flicker."""


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Call what it gives with the number of bytes that were done since the last call."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _size_bytes: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
    task = bar.add_task(what, total=total_bytes)
    begun = time.monotonic()

    def advance(size_bytes: int) -> None:
        if not bar.live.is_started and time.monotonic() - begun >= QUIET_SECONDS:
            bar.start()
        bar.advance(task, size_bytes)

    try:
        yield advance
    finally:
        bar.stop()
