"""A progress bar on standard error for long work. It appears only on a terminal, and disappears at the end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

QUIET_SECONDS: Final = 0.5
"""How long work takes before its bar appears, so that quick work shows none."""


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Yield a function; call it with the number of bytes processed since the last call."""
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
