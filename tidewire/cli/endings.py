"""How a command ends when it cannot do what was asked: one sentence on standard error, and an exit status.

An operator's mistake and a failure have different statuses, as `tidewire broker` has them, so that a script can tell
what is worth trying again. Defects of ours keep their traceback.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

EXIT_FAILED: Final = 1
"""The command was used correctly and failed."""

EXIT_USAGE: Final = 2
"""The command was given something that it cannot take."""

EXIT_INTERRUPTED: Final = 130
"""What a shell expects of a program that Ctrl-C ended."""


class CommandFailed(Exception):
    """The command could not be carried out; the text is the sentence for whoever typed it."""

    exit_status = EXIT_FAILED


class UsageError(CommandFailed):
    """The command was given something that it cannot take."""

    exit_status = EXIT_USAGE


@contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """Turn `CommandFailed` into `COMMAND: SENTENCE` on standard error and the process's end."""
    try:
        yield
    except CommandFailed as failure:
        typer.echo(f"{command}: {failure}", err=True)
        raise SystemExit(failure.exit_status) from failure


@contextmanager
def while_somebody_reads() -> Iterator[None]:
    """End what writes to standard output well when its reader, `head` for instance, has enough, or Ctrl-C is typed."""
    try:
        yield
    except BrokenPipeError:
        # Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    """Read options of the form KEY=VALUE, given under `flag`.

    Raises:
        UsageError: one is written otherwise.
    """
    read = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise UsageError(f"{flag} is written as KEY=VALUE, not {text!r}.")
        read[key] = value
    return read
