"""The commands' common frame. Each command's module is imported when it is called, so that none pays for the others."""

from typing import Final

import typer

from tidewire.cli import broker, consume, metadata, produce, topics, txn
from tidewire.cli.demo import command as demo

app: Final = typer.Typer(
    help="Tidewire: a transactional event-streaming broker, and tools to use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("broker")(broker.command)
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.command)
app.command("consume")(consume.command)
app.add_typer(txn.app, name="txn")
app.add_typer(metadata.app, name="metadata")
app.command("demo")(demo.command)


@app.callback()
def _commands() -> None:
    """Keep `tidewire` a set of commands."""


def main() -> None:
    """Run the command line's command; the entry point of `tidewire`."""
    app()
