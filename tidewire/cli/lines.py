"""The lines of a file or of standard input, one message a line, as they come.

A line of a pipe is given out as soon as it is complete, so that a program can feed `tidewire produce` for days. Memory
holds one block and one unfinished line.
"""

import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import anyio
import anyio.to_thread

from tidewire.cli.endings import CommandFailed, UsageError

STANDARD_INPUT: Final = "-"
"""The name of standard input where a file may be named."""

BLOCK_BYTES: Final = 256 * 1024
"""Most bytes that are read at a time."""

LINE_BYTES_MAX: Final = 128 * 1024 * 1024
"""The longest line. A file without line ends is probably not meant to be read line by line."""


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open the file for the block, or take standard input for "-".

    Raises:
        UsageError: it cannot be opened.
    """
    if path == STANDARD_INPUT:
        yield _standard_input()
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - an error of the block is not this one's
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    with file:
        yield file


def _standard_input() -> IO[bytes]:
    # Python has no object for a descriptor that was closed when it began.
    if sys.stdin is None:
        raise UsageError("Standard input is closed. Give messages as arguments or in --file.")
    # Python's buffered object would have a lock, which a thread that waits for a line still holds when the command
    # ends. Python aborts then.
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except io.UnsupportedOperation:
        # Something else than a file stands in for standard input.
        return sys.stdin.buffer


async def lines_of(source: IO[bytes], path: str) -> AsyncIterator[bytes]:
    """Yield the lines of `opened(path)`, without their ends (LF or CR LF).

    Raises:
        CommandFailed: it cannot be read to its end, or a line is longer than LINE_BYTES_MAX.
    """
    # `read1` returns what is there, and waits only if there is nothing. It may take long, so it runs in a thread.
    read1: Any = getattr(source, "read1", source.read)
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            block: bytes | None = await anyio.to_thread.run_sync(read1, BLOCK_BYTES, abandon_on_cancel=True)
            if block is None:
                # Another program has set the pipe or terminal to answer at once.
                await anyio.wait_readable(source)
                continue
        except OSError as error:
            raise CommandFailed(f"{path} cannot be read further: {error.strerror}.") from error
        first, *others = block.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > LINE_BYTES_MAX:
            raise CommandFailed(f"{path} has a line of more than {LINE_BYTES_MAX} bytes. Give one message a line.")
        if others:
            yield b"".join(parts).removesuffix(b"\r")
            for line in others[:-1]:
                yield line.removesuffix(b"\r")
            parts, size = [others[-1]], len(others[-1])
        if not block:
            if size:
                yield b"".join(parts).removesuffix(b"\r")
            return
