"""`tidewire cluster status`: asks the brokers in turn, and prints what they show.

Any broker knows the whole cluster. If the broker that was asked ends or stands still, the next one goes on.
"""

import json
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import typer

from tidewire.cli.asking import NotAccepted, NotAnswered
from tidewire.cli.broker_http import BrokerHttp
from tidewire.cli.output import plain_console

if TYPE_CHECKING:
    from rich.console import RenderableType

PATH: Final = "/admin/v2/cluster"
KINDS: Final = ("segments", "topics", "controllers", "coordinators")

ANSWER_SECONDS_MAX: Final = 10.0
"""How long a broker may take. If it is stopped, the next one is asked after that."""
WIDTH: Final = 160
"""Characters in a line that goes to no terminal."""

View = dict[str, Any]
"""The cluster, as a broker shows it."""


def views(addresses: Sequence[str], *, watch: bool) -> Generator[View, None, None]:
    """Yield the cluster as it is now; with `watch`, again after every change, until this is interrupted.

    Raises:
        NotAnswered, NotAccepted: none of the brokers answers.
    """
    silent = 0
    shown: View | None = None
    while True:
        for address in addresses:
            broker = BrokerHttp(address, answer_seconds_max=ANSWER_SECONDS_MAX)
            try:
                for line in broker.lines(PATH, {"watch": "true"} if watch else {}):
                    silent = 0
                    # A broker repeats itself as a sign of life, and the next broker says the same.
                    if shown != (view := json.loads(line)):
                        shown = view
                        yield view
            except (NotAnswered, NotAccepted) as failure:
                # A broker without a metadata session refuses everything. Another one may have its session.
                silent += 1
                if silent < len(addresses):
                    continue
                if len(addresses) == 1 or isinstance(failure, NotAccepted):
                    raise
                raise NotAnswered(f"None of the brokers at {', '.join(addresses)} answers. {failure}") from failure
            if not watch:
                return


def print_lines(views: Iterable[View]) -> None:
    """Print each view as one line of JSON."""
    for view in views:
        typer.echo(json.dumps(view))


def print_tables(views: Iterable[View], *, live: bool) -> None:
    """Print each view as a table. If `live`, a terminal shows only the newest one."""
    from rich.live import Live

    # In a file or a pipe, lines may have any length.
    console = plain_console(None if sys.stdout.isatty() else WIDTH)
    if live and sys.stdout.isatty():
        with Live(console=console, auto_refresh=False) as display:
            for view in views:
                display.update(_table(view), refresh=True)
    else:
        for view in views:
            console.print(_table(view))


def _notes(view: View) -> Iterator[str]:
    """Yield what a view says besides its brokers."""
    yield f"{view['openTransactions']} open transactions"
    # On etcd there is none, and a broker of an earlier release does not say.
    controller = view.get("metadataController")
    if controller is not None:
        yield f"metadata controller: {controller or 'none is known at this moment'}"


def _table(view: View) -> "RenderableType":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption="\n".join(_notes(view)), caption_justify="left")
    for name in ("broker", "state", "pulsar", "kafka"):
        table.add_column(name, no_wrap=True)
    for kind in KINDS:
        table.add_column(kind, justify="right", no_wrap=True)
    for broker in view["brokers"]:
        url = broker["serviceUrl"]
        table.add_row(
            broker["broker"],
            broker["state"],
            "" if url is None else urlsplit(url).netloc,
            # A broker of an earlier release does not say.
            broker.get("kafka") or "",
            *(str(broker["claims"][kind]) for kind in KINDS),
        )
    return table
