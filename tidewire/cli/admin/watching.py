"""`--watch`: what a broker pushes to its console, shown again after every change.

The broker sends all parts of a view first, and then those that changed. If they change fast, it sends the latest state
a few times a second. Nobody asks anything meanwhile, so a watch of something idle costs nothing.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import typer

from tidewire.cli.asking import NotAccepted, NotAnswered
from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.endings import CommandFailed
from tidewire.cli.output import print_json

EVENTS: Final = "/console/events"
_DATA: Final = b"data: "

Parts = Mapping[str, Any]
T = TypeVar("T")


def pushed(addresses: Sequence[str], view: str, **parameters: str) -> Iterator[Parts]:
    """Yield all parts of a view of the console, as they are after each change. If a broker ends, the next one goes on.

    Raises:
        NotAnswered, NotAccepted: no broker serves the view any more.
        CommandFailed: the broker cannot go on with the view.
    """
    failed = 0
    while True:
        for address in addresses:
            try:
                for parts in _frames(BrokerHttp(address), {"view": view, **parameters}):
                    failed = 0
                    yield parts
            except (NotAnswered, NotAccepted):
                failed += 1
                if failed >= len(addresses):
                    raise


def _frames(broker: BrokerHttp, query: Mapping[str, str]) -> Iterator[Parts]:
    parts: dict[str, Any] = {}
    for line in broker.lines(EVENTS, query, pushed=True):
        # Blank lines end an event, and a comment is a sign of life.
        if not line.startswith(_DATA):
            continue
        parts = {**parts, **json.loads(line.removeprefix(_DATA))}
        if "failed" in parts:
            raise CommandFailed(f"The broker at {broker.url} stopped the watch: {parts['failed'].rstrip('.')}.")
        yield parts
    raise NotAnswered(f"The broker at {broker.url} ended the watch. Start it again to see later changes.")


def show_each(documents: Iterable[T], text: Callable[[T], str], as_json: bool) -> None:
    """Show each document that differs from the last one. A terminal shows only the newest, others get all."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    differing = _differing(documents)
    if as_json:
        for document in differing:
            print_json(document)
            sys.stdout.flush()
    elif sys.stdout.isatty():
        with Live(console=Console(), auto_refresh=False) as display:
            for document in differing:
                display.update(Text(text(document)), refresh=True)
    else:
        for document in differing:
            typer.echo(f"{text(document)}\n")
            sys.stdout.flush()


def _differing(documents: Iterable[T]) -> Iterator[T]:
    last: T | None = None
    for document in documents:
        if document != last:
            last = document
            yield document
