"""Commands that destroy something ask first, unless they were called with --yes."""

import sys
from typing import Annotated

import typer

from tidewire.cli.endings import CommandFailed, Interrupted, UsageError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(consequence: str, is_confirmed: bool) -> None:
    """Return if the user agrees to `consequence`, a sentence without its full stop.

    Raises:
        UsageError: there is no terminal to ask at.
        CommandFailed: the user does not agree. Nothing was changed.
        Interrupted: Ctrl-C.
    """
    if is_confirmed:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{consequence}. Confirm it with --yes.")
    # Not `typer.confirm`, which writes a part of its question to standard output.
    typer.echo(f"{consequence}. Go on? [y/N] ", err=True, nl=False)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        raise Interrupted("interrupted. Nothing was changed.") from None
    if answer.strip().lower() not in {"y", "yes"}:
        raise CommandFailed("Nothing was changed.")
