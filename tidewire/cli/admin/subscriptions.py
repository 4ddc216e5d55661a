"""`tidewire subscriptions`: list, show, create, move and delete the subscriptions of topics of both kinds."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer

from tidewire.cli.admin.confirming import Yes, confirm
from tidewire.cli.admin.pushed_views import pushed_topic
from tidewire.cli.admin.statistics import View, subscription_view, topic_view
from tidewire.cli.admin.watching import pushed, show_each
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import CommandFailed, UsageError, one_sentence, while_somebody_reads
from tidewire.cli.output import Cell, Json, Watch, fields, moment, note, print_json, table, tell
from tidewire.cli.topic_paths import TopicPath, topic_path

app: Final = typer.Typer(help="List, show, create, move and delete subscriptions.", no_args_is_help=True)

COMMAND: Final = "tidewire subscriptions"
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_BEFORE_ALL: Final = {"ledgerId": -1, "entryId": -1, "batchIndex": -1, "excluded": False}
"""The place before the first message, as the admin HTTP API has it."""

Topic = Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)]
Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="The subscription's name.", show_default=False)]


class Kind(StrEnum):
    """How the consumers of a scalable topic's subscription share it."""

    STREAM = "stream"
    QUEUE = "queue"


class Start(StrEnum):
    """Where a new subscription begins."""

    EARLIEST = EARLIEST
    LATEST = LATEST


@app.command("list")
def list_all(
    topic: Topic, watch: Watch = False, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """List a topic's subscriptions with their consumers and backlog. A batch of messages counts as one."""
    with one_sentence(COMMAND), while_somebody_reads():
        path, asked = topic_path(topic), addresses(data_dir, http)
        if watch:
            pushes = pushed(asked, "topic", name=topic)
            show_each((pushed_topic(path, parts)["subscriptions"] for parts in pushes), listed, as_json)
            return
        subscriptions = topic_view(Brokers(*asked), path)["subscriptions"]
        if as_json:
            print_json(subscriptions)
            return
        typer.echo(listed(subscriptions))
        if not subscriptions:
            create_one = f"`tidewire subscriptions create {topic} NAME`"
            note(COMMAND, f"{topic} has no subscriptions. Create one with {create_one}, or let a consumer do it.")


@app.command("show")
@app.command("stats", help="The same as show.")
def show(
    topic: Topic, name: Name, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Show a subscription: its backlog on each segment or partition, and who reads there."""
    with one_sentence(COMMAND):
        view = subscription_view(topic_view(Brokers(*addresses(data_dir, http)), topic_path(topic)), name)
        if as_json:
            print_json(view)
        else:
            typer.echo(_shown(view))


@app.command("create")
def create(
    topic: Topic,
    name: Name,
    start: Annotated[Start, typer.Option("--from", help="Where it begins.")] = Start.EARLIEST,
    kind: Annotated[
        Kind | None,
        typer.Option(
            "--type", help="On a topic:// topic: stream keeps the order (default), queue shares message by message."
        ),
    ] = None,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Create a subscription, so that its messages are kept from now on. No consumer has to be there yet."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        if kind is not None and not path.is_scalable:
            raise UsageError("--type is for topic:// topics. The first consumer of a persistent:// topic decides.")
        brokers = Brokers(*addresses(data_dir, http))
        resource = path.subscription(name)
        if path.is_scalable:
            # The broker accepts a repeated request. To skip in a subscription that was there would lose its backlog.
            if name in brokers.ask("GET", path.root + "/subscriptions"):
                raise CommandFailed(f"{topic} has a subscription {name} already.")
            brokers.ask("PUT", resource, [("type", (kind or Kind.STREAM).upper())])
            if start is Start.LATEST:
                brokers.ask("POST", resource + "/skip-all")
        else:
            brokers.ask("PUT", resource, body=_BEFORE_ALL if start is Start.EARLIEST else None)
        tell(f"created {name} on {topic}", as_json, topic=topic, subscription=name, start=start.value)


@app.command("seek")
def seek(
    topic: Topic,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="earliest, latest, a time (2013-01-31T06:15:00Z), how long ago (15m), or behind the id of a message "
            "of a persistent:// topic without partitions (1000:5).",
            show_default=False,
        ),
    ],
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Move a subscription to a time or a message. Its consumers go on with the first message from there on."""
    with one_sentence(COMMAND):
        from tidewire.cli.message_ids import beginning_of
        from tidewire.protocol.positions import MessageId

        path = topic_path(topic)
        place = beginning_of(to, datetime.now(UTC), "--to")
        if path.is_scalable and isinstance(place, MessageId):
            raise UsageError("A message id moves a subscription of a persistent:// topic. Give a time instead.")
        confirm(f"The consumers of {name} will get messages again, or miss some", yes)
        brokers = Brokers(*addresses(data_dir, http))
        if place == LATEST:
            _skip_all(brokers, path, name)
        elif isinstance(place, MessageId):
            behind = {"ledgerId": place.ledger_id, "entryId": place.entry_id, "batchIndex": place.batch_index}
            brokers.ask("POST", path.subscription(name) + "/resetcursor", body={**behind, "excluded": True})
        else:
            since_epoch_ms = round(place.timestamp() * 1000) if isinstance(place, datetime) else 0
            if path.is_scalable:
                brokers.ask("POST", path.subscription(name) + "/seek", [("timestamp", str(since_epoch_ms))])
            else:
                brokers.ask("POST", f"{path.subscription(name)}/resetcursor/{since_epoch_ms}")
        tell(f"moved {name} on {topic} to {to}", as_json, topic=topic, subscription=name, to=to)


@app.command("skip")
def skip(
    topic: Topic,
    name: Name,
    count: Annotated[
        int | None,
        typer.Option(
            "--count",
            "-n",
            min=1,
            help="Skip only this many entries (a batch is one) of a persistent:// topic without partitions.",
        ),
    ] = None,
    older_than_seconds: Annotated[
        int | None,
        typer.Option("--older-than", min=1, help="Skip what is older than this many seconds on a persistent:// topic."),
    ] = None,
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Let a subscription pass its whole backlog, or a part of it. Its consumers do not get these messages."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        if count is not None and older_than_seconds is not None:
            raise UsageError("Give either --count or --older-than.")
        if path.is_scalable and (count is not None or older_than_seconds is not None):
            raise UsageError("A topic:// topic skips its whole backlog. To skip a part, seek to a time.")
        if count is not None:
            what, resource = _entries(count), f"/skip/{count}"
        elif older_than_seconds is not None:
            what, resource = f"what is older than {older_than_seconds} s", f"/expireMessages/{older_than_seconds}"
        else:
            what, resource = "its backlog", ""
        confirm(f"The consumers of {name} will miss {what}", yes)
        brokers = Brokers(*addresses(data_dir, http))
        if resource:
            brokers.ask("POST", path.subscription(name) + resource)
        else:
            _skip_all(brokers, path, name)
        tell(f"{name} on {topic} skipped {what}", as_json, topic=topic, subscription=name, skipped=what)


@app.command("unsubscribe")
@app.command("delete", help="The same as unsubscribe.")
def unsubscribe(
    topic: Topic,
    name: Name,
    force: Annotated[
        bool,
        typer.Option("--force", help="Disconnect its consumers. On a topic:// topic they are always disconnected."),
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Delete a subscription with its progress. Messages that only it needed are freed."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        confirm(f"The progress of {name} on {topic} will be lost", yes)
        query = [("force", "true")] if force and not path.is_scalable else []
        Brokers(*addresses(data_dir, http)).ask("DELETE", path.subscription(name), query)
        tell(f"deleted {name} on {topic}", as_json, topic=topic, subscription=name, deleted=True)


def _skip_all(brokers: Brokers, path: TopicPath, name: str) -> None:
    brokers.ask("POST", path.subscription(name) + ("/skip-all" if path.is_scalable else "/skip_all"))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def listed(subscriptions: list[View]) -> str:
    """Return subscriptions as a table."""
    return table(
        ("subscription", "type", "consumers", "backlog", "bytes", "oldest", "unacknowledged"),
        [
            (
                one["subscription"],
                one["type"],
                one["consumers"],
                one["backlog"],
                one["backlogBytes"],
                moment(one["oldestBacklogAtMs"]),
                one["unackedMessages"],
            )
            for one in subscriptions
        ],
    )


def _shown(view: View) -> str:
    facts: list[tuple[str, Cell]] = [
        ("topic", view["topic"]),
        ("subscription", view["subscription"]),
        ("type", view["type"]),
        ("consumers", view["consumers"]),
        ("backlog", view["backlog"]),
        ("backlog bytes", view["backlogBytes"]),
        ("oldest", moment(view["oldestBacklogAtMs"])),
        ("unacknowledged", view["unackedMessages"]),
    ]
    parts = [(one["part"], one["backlog"], one["backlogBytes"], one["unackedMessages"]) for one in view["parts"]]
    blocks = [fields(facts), table(("part", "backlog", "bytes", "unacknowledged"), parts)]
    consumers = [
        (one["consumer"], one["part"], one["permits"], one["unackedMessages"], one["messagesOut"])
        for one in view["consumersConnected"]
    ]
    if consumers:
        blocks.append(table(("consumer", "part", "permits", "unacknowledged", "messages out"), consumers))
    return "\n\n".join(blocks)
