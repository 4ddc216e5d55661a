"""The `tidewire` command and its subcommands. A subcommand imports what it needs when it runs, so each starts fast."""

from typing import Final

import typer

from tidewire.cli import broker, consume, metadata, produce, topics, txn
from tidewire.cli.cluster import command as cluster
from tidewire.cli.demo import command as demo

app: Final = typer.Typer(
    help="Tidewire: a transactional event-streaming broker, and commands to use and inspect it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("broker")(broker.command)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.command)
app.command("consume")(consume.command)
app.add_typer(txn.app, name="txn")
app.add_typer(metadata.app, name="metadata")
app.command("demo")(demo.command)


@app.callback()
def _commands() -> None:
    """Make typer treat `tidewire` as a group of commands."""


def main() -> None:
    """Run the command line. This is the entry point of `tidewire`."""
    app()
