"""The `tidewire` command and its subcommands. A subcommand imports what it needs when it runs, so each starts fast."""

from typing import Annotated, Final

import typer

from tidewire.cli import backup, broker, consume, metadata, produce, topics
from tidewire.cli.admin import namespaces, schemas, segments, subscriptions, transactions
from tidewire.cli.bench import command as bench
from tidewire.cli.cluster import command as cluster
from tidewire.cli.demo import command as demo
from tidewire.cli.environment import require_known_variables
from tidewire.cli.logs import give_log_options

app: Final = typer.Typer(
    help="Tidewire: a transactional event-streaming broker, and commands to use and inspect it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help. Typer's boxes cut long flags at 80 columns.
    rich_markup_mode=None,
)
app.command("broker")(broker.command)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topics.app, name="topics")
app.command("produce")(produce.command)
app.command("consume")(consume.command)
app.add_typer(segments.app, name="segments")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(transactions.app, name="transactions")
app.add_typer(schemas.app, name="schemas")
app.add_typer(namespaces.app, name="namespaces")
app.add_typer(bench.app, name="bench")
app.add_typer(metadata.app, name="metadata")
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("demo")(demo.command)
give_log_options(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tidewire {version('tidewire')}")
        raise typer.Exit


@app.callback()
def _commands(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Check what all commands share, before one of them runs."""
    # A broker names all mistakes in its settings together.
    if context.invoked_subcommand != "broker":
        require_known_variables()


def main() -> None:
    """Run the command line. This is the entry point of `tidewire`."""
    # `python -m tidewire.cli` calls itself the same way, which shell completion relies on.
    app(prog_name="tidewire")
