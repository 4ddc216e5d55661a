"""How a failed command ends: one message on standard error, and an exit status.

A wrong call and a failure have different statuses, so a script can tell which one is worth a retry. `tidewire broker`
uses the same statuses. A bug in Tidewire keeps its traceback.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from tidewire.cli.logs import told

EXIT_FAILED: Final = 1
"""The command was called correctly and failed."""

EXIT_USAGE: Final = 2
"""The command was called with invalid arguments."""

EXIT_INTERRUPTED: Final = 130
"""The status that shells use for a program ended by Ctrl-C."""


class CommandFailed(Exception):
    """The command failed; the text is the message for its user."""

    exit_status = EXIT_FAILED


class Interrupted(CommandFailed):
    """Ctrl-C ended the command; the text says how far it was."""

    exit_status = EXIT_INTERRUPTED


class UsageError(CommandFailed):
    """The command was called with invalid arguments."""

    exit_status = EXIT_USAGE


@contextmanager
def one_sentence(command: str) -> Iterator[None]:
    """Turn `CommandFailed` into `COMMAND: MESSAGE` on standard error, and exit with its status."""
    try:
        yield
    except CommandFailed as failure:
        typer.echo(told("error", command, str(failure)), err=True)
        raise SystemExit(failure.exit_status) from failure


@contextmanager
def while_somebody_reads() -> Iterator[None]:
    """End quietly when the reader of standard output (such as `head`) has closed it, or at Ctrl-C."""
    try:
        yield
    except BrokenPipeError:
        # Otherwise Python reports the broken pipe again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def pairs(texts: list[str], flag: str) -> dict[str, str]:
    """Parse the KEY=VALUE texts that were given with `flag`.

    Raises:
        UsageError: a text has another form.
    """
    read = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not (key and separator):
            raise UsageError(f"{flag} {text!r} is not KEY=VALUE.")
        read[key] = value
    return read
