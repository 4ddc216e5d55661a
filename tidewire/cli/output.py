"""What commands print: tables and sentences for people, one JSON document for programs.

Only a command that follows something, and one that lists messages or records without end, prints JSON lines.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.logs import told

if TYPE_CHECKING:
    from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", "-w", help="Show it again after every change, until Ctrl-C. With --json, one document a line."
    ),
]

_GAP: Final = "  "
_NOTHING: Final = "-"
"""Stands in a table where there is no value, so that every row has as many words."""

Cell = str | int | None


def print_json(document: object) -> None:
    """Print a document on one line. Its field names are those of the HTTP API or of the command's page."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def tell(sentence: str, as_json: bool, **fields: object) -> None:
    """Say what a command did: `sentence`, or with `as_json` the fields as one document."""
    if as_json:
        print_json(fields)
    else:
        typer.echo(sentence)


def note(command: str, sentence: str) -> None:
    """Say on standard error what is neither a result nor a failure, in the form that `--log-format` wants."""
    typer.echo(told("info", command, sentence), err=True)


def plain_console(width: int | None = None) -> "Console":
    """Return what prints texts and rich's tables to standard output, with names and values as they are.

    Users choose these, and rich would take a part of them for markup or for an emoji. `width` is in characters; None
    takes the terminal's.
    """
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, width=width)


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return rows as lines without borders, for eyes and for `awk`. Numbers stand at the right of their column.

    A cell is never cut. On a narrow terminal the line wraps.
    """
    from rich.cells import cell_len

    texts = [list(columns)]
    numeric = [True] * len(columns)
    for row in rows:
        texts.append([_text(cell) for cell in row])
        numeric = [was and not isinstance(cell, str) for was, cell in zip(numeric, row, strict=True)]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]

    def padded(text: str, width: int, is_number: bool) -> str:
        padding = " " * (width - cell_len(text))
        return padding + text if is_number else text + padding

    return "\n".join(_GAP.join(map(padded, line, widths, numeric)).rstrip() for line in texts)


def fields(pairs: Iterable[tuple[str, Cell]]) -> str:
    """Return what is known about one thing, a line each."""
    known = list(pairs)
    width = max(len(name) for name, _ in known)
    return "\n".join(f"{name:{width}}{_GAP}{_text(value)}" for name, value in known)


def moment(milliseconds: int | None) -> str | None:
    """Return a time in ms since 1970 in UTC, to the second; None for None and 0, which say that there is none."""
    if not milliseconds:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _text(cell: Cell) -> str:
    if cell is None or cell == "":
        return _NOTHING
    return f"{cell:,}" if isinstance(cell, int) else cell
