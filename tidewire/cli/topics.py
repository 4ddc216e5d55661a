"""`tidewire topics`: create, list, show, grow, unload and delete topics of both kinds, and migrate a regular topic.

A `persistent://` topic need not be created: its first producer or consumer does that.
"""

from typing import Annotated, Final

import typer

from tidewire.cli import peek
from tidewire.cli.admin import retention
from tidewire.cli.admin.confirming import Yes, confirm
from tidewire.cli.admin.pushed_views import pushed_topic
from tidewire.cli.admin.segments import add_changes
from tidewire.cli.admin.statistics import topic_view
from tidewire.cli.admin.topic_lists import topics_in
from tidewire.cli.admin.topic_texts import print_layout, print_regular, statistics_text
from tidewire.cli.admin.watching import pushed, show_each
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import UsageError, one_sentence, pairs, while_somebody_reads
from tidewire.cli.output import Json, Watch, note, print_json, tell
from tidewire.cli.topic_paths import topic_path

app: Final = typer.Typer(help="Create, list, show, peek at, change and delete topics.", no_args_is_help=True)
app.command("peek")(peek.command)
app.command("retention")(retention.command)

COMMAND: Final = "tidewire topics"

Topic = Annotated[str, typer.Argument(help="topic://... or persistent://TENANT/NAMESPACE/NAME", show_default=False)]
Properties = Annotated[list[str], typer.Option("--property", help="KEY=VALUE; may be given several times.")]


@app.command("create")
def create(
    topic: Topic,
    segments: Annotated[
        int | None, typer.Option(help="Number of segments to start with (default: the broker's setting).")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions of a persistent:// topic (default: none).")
    ] = None,
    properties: Properties = [],  # noqa: B006 - typer copies it
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Create a scalable or a regular topic."""
    with one_sentence(COMMAND):
        path, given = topic_path(topic), pairs(properties, "--property")
        if path.is_scalable and partitions is not None:
            raise UsageError("A topic:// topic has segments instead of partitions. Give --segments.")
        if not path.is_scalable and (segments is not None or given):
            raise UsageError(
                "A persistent:// topic has neither segments nor properties. Give --partitions, or nothing."
            )
        brokers = Brokers(*addresses(data_dir, http))
        if path.is_scalable:
            brokers.ask("PUT", path.root, [] if segments is None else [("numInitialSegments", str(segments))], given)
        elif partitions is None:
            brokers.ask("PUT", path.root)
        else:
            brokers.ask("PUT", path.root + "/partitions", body=partitions)
        tell(f"created {topic}", as_json, topic=topic, created=True)


@app.command("extend")
def extend(
    topic: Annotated[str, typer.Argument(help="persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    partitions: Annotated[int, typer.Option(min=1, help="How many partitions it has then.", show_default=False)],
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Give a partitioned topic more partitions. Its messages stay where they are, but keys may move to others."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        if path.is_scalable:
            raise UsageError(f"{topic} has segments instead of partitions. Split one with `tidewire topics split`.")
        Brokers(*addresses(data_dir, http)).ask("POST", path.root + "/partitions", body=partitions)
        tell(f"extended {topic} to {partitions} partitions", as_json, topic=topic, partitions=partitions)


@app.command("list")
def names(
    namespace: Annotated[str, typer.Argument(help="TENANT/NAMESPACE")] = "public/default",
    properties: Properties = [],  # noqa: B006 - typer copies it
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """List a namespace's topics of both kinds, one a line. With --property, only scalable ones that have it."""
    with one_sentence(COMMAND):
        found = topics_in(Brokers(*addresses(data_dir, http)), namespace, pairs(properties, "--property"))
        if as_json:
            print_json(found)
        else:
            for one in found:
                typer.echo(one["topic"])
            if not found:
                having = f" that has {' and '.join(properties)}" if properties else ""
                note(
                    COMMAND,
                    f"The namespace {namespace} has no topic{having}. Create one with "
                    f"`tidewire topics create topic://{namespace}/NAME`.",
                )


@app.command("show")
def show(topic: Topic, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """Show a topic's segments or partitions, its subscriptions and its groups of Kafka's consumers."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        brokers = Brokers(*addresses(data_dir, http))
        statistics = brokers.ask("GET", path.root + "/stats")
        layout = brokers.ask("GET", path.root) if path.is_scalable else None
        if as_json:
            about = {"partitions": statistics["partitions"]} if layout is None else layout
            groups = statistics.get("kafkaGroups", {})
            print_json({"topic": topic, **about, "subscriptions": statistics["subscriptions"], "kafkaGroups": groups})
        elif layout is None:
            print_regular(topic, statistics)
        else:
            print_layout(topic, layout, statistics)


@app.command("stats")
def stats(
    topic: Topic, watch: Watch = False, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Show what a topic's owners count on each segment or partition, and its subscriptions with their backlog."""
    with one_sentence(COMMAND), while_somebody_reads():
        path, asked = topic_path(topic), addresses(data_dir, http)
        if watch:
            pushes = pushed(asked, "topic", name=topic)
            show_each((pushed_topic(path, parts) for parts in pushes), statistics_text, as_json)
            return
        view = topic_view(Brokers(*asked), path)
        if as_json:
            print_json(view)
        else:
            typer.echo(statistics_text(view))


add_changes(app, COMMAND, "It has no segments.")


@app.command("migrate")
def migrate(
    topic: Annotated[str, typer.Argument(help="persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    force: Annotated[
        bool,
        typer.Option("--force", help="Migrate while v4 clients use it. They can then read old messages, not produce."),
    ] = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Turn a persistent:// topic into a scalable one, with its messages and subscriptions. This cannot be undone."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        if path.is_scalable:
            raise UsageError(f"{topic} is a scalable topic already. Give the name of a persistent:// topic.")
        Brokers(*addresses(data_dir, http)).ask("POST", path.migration, [("force", "true")] if force else [])
        scalable = topic.replace("persistent", "topic", 1)
        tell(f"migrated {topic} to {scalable}", as_json, topic=topic, to=scalable)


@app.command("unload")
def unload(topic: Topic, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None) -> None:
    """Let the owners of a topic release it. The next client loads it again. Clients reconnect by themselves."""
    with one_sentence(COMMAND):
        Brokers(*addresses(data_dir, http)).ask("PUT", topic_path(topic).root + "/unload")
        tell(f"unloaded {topic}", as_json, topic=topic, unloaded=True)


@app.command("delete")
def delete(
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even while in use: disconnect its clients.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Delete a topic with its messages and subscriptions, and with all partitions that it has."""
    with one_sentence(COMMAND):
        path = topic_path(topic)
        confirm(f"All messages and subscriptions of {topic} will be lost", yes)
        Brokers(*addresses(data_dir, http)).ask("DELETE", path.root, [("force", "true")] if force else [])
        tell(f"deleted {topic}", as_json, topic=topic, deleted=True)
