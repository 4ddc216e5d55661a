"""`tidewire transactions`: begin, list, show, commit and abort transactions.

    id=$(tidewire transactions begin)
    tidewire produce topic://public/default/a first second --in-transaction $id
    tidewire produce topic://public/default/b third --in-transaction $id
    tidewire transactions commit $id

Any process that knows the id of a transaction can end it. `begin` and `commit` are requests of a client, so they need
the brokers' service URL. The others ask the admin HTTP API. To send the messages of one call in a transaction, use
`tidewire produce --transaction`.
"""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidewire.cli.admin.confirming import Yes, confirm
from tidewire.cli.admin.pushed_views import pushed_transactions
from tidewire.cli.admin.watching import pushed, show_each
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import UsageError, one_sentence, while_somebody_reads
from tidewire.cli.output import Json, Watch, fields, moment, note, print_json, table, tell
from tidewire.cli.produce import SERVICE_URL_DEFAULT, ServiceUrl
from tidewire.cli.transaction_ids import format_transaction_id, parse_transaction_id

if TYPE_CHECKING:
    import tidewire

app: Final = typer.Typer(help="Begin, list, show, commit and abort transactions.", no_args_is_help=True)

COMMAND: Final = "tidewire transactions"
_PREFIX: Final = "/admin/v3/transactions"

TransactionId = Annotated[str, typer.Argument(metavar="ID", help="COORDINATOR:NUMBER", show_default=False)]


@app.command("begin")
def begin(
    timeout_seconds: Annotated[
        float, typer.Option("--timeout", min=0.001, help="The broker aborts the transaction after this many seconds.")
    ] = 60.0,
    as_json: Json = False,
    service_url: ServiceUrl = SERVICE_URL_DEFAULT,
) -> None:
    """Begin a transaction and print its id."""
    with one_sentence(COMMAND):
        from tidewire.cli.clients import run_client

        async def story(client: "tidewire.Client") -> None:
            transaction = await client.new_transaction(timeout_seconds)
            begun = format_transaction_id(transaction.transaction_id)
            tell(begun, as_json, transaction=begun)

        run_client(service_url, story)


@app.command("commit")
def commit(transaction_id: TransactionId, as_json: Json = False, service_url: ServiceUrl = SERVICE_URL_DEFAULT) -> None:
    """Commit a transaction: consumers get everything that was sent in it. It is durable when the command ends."""
    with one_sentence(COMMAND):
        from tidewire.cli.clients import run_client

        parsed = parse_transaction_id(transaction_id)

        async def story(client: "tidewire.Client") -> None:
            await client.join_transaction(parsed).commit()
            tell(f"committed {transaction_id}", as_json, transaction=transaction_id, state="COMMITTED")

        run_client(service_url, story)


@app.command("list")
def open_ones(
    older_than_seconds: Annotated[
        float, typer.Option("--older-than", min=0.0, help="Only those open for at least this many seconds.")
    ] = 0.0,
    coordinator: Annotated[int | None, typer.Option(min=0, help="Only those of this coordinator.")] = None,
    watch: Watch = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """List the open transactions of Pulsar's and Tidewire's clients, oldest first, at most 1,000."""
    with one_sentence(COMMAND), while_somebody_reads():
        asked = addresses(data_dir, http)
        if watch:
            if older_than_seconds or coordinator is not None:
                raise UsageError("--watch shows all open transactions. Leave out --older-than and --coordinator.")
            show_each(map(pushed_transactions, pushed(asked, "transactions")), _listed, as_json)
            return
        query = [] if coordinator is None else [("coordinatorId", str(coordinator))]
        age = round(older_than_seconds * 1000)
        found = Brokers(*asked).ask("GET", f"{_PREFIX}/slowTransactions/{age}", query)
        views = [_view(one) for one in found.values()]
        if as_json:
            print_json(views)
            return
        typer.echo(_listed(views))
        if not views:
            which = "" if coordinator is None else f" of coordinator {coordinator}"
            how_long = f"has been open for {older_than_seconds:g} s" if older_than_seconds else "is open"
            note(COMMAND, f"No transaction{which} {how_long}. `tidewire transactions begin` opens one.")


@app.command("show")
def show(
    transaction_id: TransactionId, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Show a transaction that is open, or ended not long ago: its state, its deadline and its participants."""
    with one_sentence(COMMAND):
        most, least = parse_transaction_id(transaction_id)
        brokers = Brokers(*addresses(data_dir, http))
        view = _view(brokers.ask("GET", f"{_PREFIX}/transactionMetadata/{most}/{least}"))
        if as_json:
            print_json(view)
        else:
            typer.echo(_shown(view))


@app.command("abort")
def abort(
    transaction_id: TransactionId,
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Abort a transaction: consumers never get anything that was sent in it. It is durable when the command ends."""
    with one_sentence(COMMAND):
        most, least = parse_transaction_id(transaction_id)
        confirm(f"Nothing that was sent or acknowledged in transaction {transaction_id} will count", yes)
        Brokers(*addresses(data_dir, http)).ask("POST", f"{_PREFIX}/abortTransaction/{most}/{least}")
        tell(f"aborted {transaction_id}", as_json, transaction=transaction_id, state="ABORTED")


def _view(answer: dict[str, Any]) -> dict[str, Any]:
    """A transaction in JSON. Its field names are stable."""
    return {
        "transaction": answer["txnId"].strip("()").replace(",", ":"),
        "state": answer["status"],
        "openedAtMs": answer["openTimestamp"],
        "timesOutAtMs": answer["timeoutAt"],
        "endedAtMs": answer["endedTimestamp"],
        "writes": sorted(answer["producedPartitions"]),
        "acknowledgements": [
            {"topic": topic, "subscription": subscription}
            for topic, subscriptions in sorted(answer["ackedPartitions"].items())
            for subscription in sorted(subscriptions)
        ],
        "unreadableRecords": answer["unreadableRecords"],
    }


def _listed(views: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["transaction"],
            moment(one["openedAtMs"]),
            moment(one["timesOutAtMs"]),
            len(one["writes"]),
            len(one["acknowledgements"]),
        )
        for one in views
    ]
    return table(("transaction", "opened", "times out", "writes", "acknowledgements"), rows)


def _shown(view: dict[str, Any]) -> str:
    facts: list[tuple[str, str | int | None]] = [
        ("transaction", view["transaction"]),
        ("state", view["state"].lower()),
        ("opened", moment(view["openedAtMs"])),
        ("times out", moment(view["timesOutAtMs"])),
        ("ended", moment(view["endedAtMs"])),
    ]
    facts += [("writes to", topic) for topic in view["writes"]]
    facts += [("acknowledges on", f"{one['topic']} {one['subscription']}") for one in view["acknowledgements"]]
    if view["unreadableRecords"]:
        facts.append(("damaged records", view["unreadableRecords"]))
    return fields(facts)
