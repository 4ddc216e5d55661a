"""`tidewire txn`: begin a transaction, and commit or abort it. Any process that knows its id can end it.

    id=$(tidewire txn begin)
    tidewire produce topic://public/default/a first second --in-transaction $id
    tidewire produce topic://public/default/b third --in-transaction $id
    tidewire txn commit $id

There is no list command, because the protocol has no such request. To send the messages of one call in a transaction,
use `tidewire produce --transaction`.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from tidewire.cli.endings import one_sentence
from tidewire.cli.produce import SERVICE_URL_DEFAULT, ServiceUrl

if TYPE_CHECKING:
    import tidewire

app: Final = typer.Typer(help="Begin, commit and abort transactions.", no_args_is_help=True)

TransactionId = Annotated[
    str, typer.Argument(metavar="ID", help="The id that `tidewire txn begin` printed.", show_default=False)
]


@app.command("begin")
def begin(
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0.001, help="The broker aborts the transaction after this many seconds.")
    ] = 60.0,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Begin a transaction and print its id."""
    with one_sentence("tidewire txn"):
        from tidewire.cli.clients import format_transaction_id, run_client

        async def story(client: "tidewire.Client") -> None:
            transaction = await client.new_transaction(timeout_seconds)
            typer.echo(format_transaction_id(transaction.transaction_id))

        run_client(service_url, story)


@app.command("commit")
def commit(transaction_id: TransactionId, service_url: ServiceUrl = SERVICE_URL_DEFAULT) -> None:
    """Commit a transaction: consumers get everything that was sent in it. It is durable when the command ends."""
    _end(transaction_id, service_url, commit=True)


@app.command("abort")
def abort(transaction_id: TransactionId, service_url: ServiceUrl = SERVICE_URL_DEFAULT) -> None:
    """Abort a transaction: consumers never get anything that was sent in it. It is durable when the command ends."""
    _end(transaction_id, service_url, commit=False)


def _end(text: str, service_url: str, *, commit: bool) -> None:
    with one_sentence("tidewire txn"):
        from tidewire.cli.clients import parse_transaction_id, run_client

        transaction_id = parse_transaction_id(text)

        async def story(client: "tidewire.Client") -> None:
            transaction = client.join_transaction(transaction_id)
            if commit:
                await transaction.commit()
            else:
                await transaction.abort()
            typer.echo(f"{'committed' if commit else 'aborted'} {text}")

        run_client(service_url, story)
