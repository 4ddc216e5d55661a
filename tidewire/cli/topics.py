"""`tidewire topics`: create, list, show, split and delete scalable topics, or migrate a regular topic to one.

A `persistent://` topic needs no command: its first producer or consumer creates it. `show` shows one, too.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidewire.cli import peek
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import one_sentence, pairs

if TYPE_CHECKING:
    from rich.console import Console

    from tidewire.cli.administration import Administration

app: Final = typer.Typer(help="Create, list, show, peek at, split, migrate and delete topics.", no_args_is_help=True)
app.command("peek")(peek.command)

Topic = Annotated[str, typer.Argument(help="topic://TENANT/NAMESPACE/NAME", show_default=False)]
Properties = Annotated[list[str], typer.Option("--property", help="KEY=VALUE; may be given several times.")]


@app.command("create")
def create(
    topic: Topic,
    segments: Annotated[
        int | None, typer.Option(help="Number of segments to start with (default: the broker's setting).")
    ] = None,
    properties: Properties = [],  # noqa: B006 - typer copies it
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Create a scalable topic."""
    with one_sentence("tidewire topics"):
        _administration(data_dir, http).create(topic, segments=segments, properties=pairs(properties, "--property"))
        typer.echo(f"created {topic}")


@app.command("list")
def names(
    namespace: Annotated[str, typer.Argument(help="TENANT/NAMESPACE")] = "public/default",
    properties: Properties = [],  # noqa: B006 - typer copies it
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """List a namespace's scalable topics, one a line. With --property, only those that have it."""
    with one_sentence("tidewire topics"):
        for name in _administration(data_dir, http).names(namespace, pairs(properties, "--property")):
            typer.echo(name)


@app.command("show")
def show(
    topic: Annotated[
        str, typer.Argument(help="topic://TENANT/NAMESPACE/NAME, or persistent://...", show_default=False)
    ],
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Show a topic's segments or partitions, its subscriptions and its groups of Kafka's consumers."""
    with one_sentence("tidewire topics"):
        administration = _administration(data_dir, http)
        if topic.startswith("persistent://"):
            _print_regular(topic, administration.regular_statistics(topic))
        else:
            _print(topic, administration.layout(topic), administration.statistics(topic))


@app.command("split")
def split(
    topic: Topic,
    segment: Annotated[int, typer.Argument(min=0, help="The segment's number, from `tidewire topics show`.")],
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Split a segment into two. Producers and consumers continue meanwhile."""
    with one_sentence("tidewire topics"):
        administration = _administration(data_dir, http)
        administration.split(topic, segment)
        children = administration.layout(topic)["segments"].get(str(segment), {}).get("childIds", [])
        typer.echo(f"split segment {segment} of {topic} into {' and '.join(map(str, children))}")


@app.command("migrate")
def migrate(
    topic: Annotated[str, typer.Argument(help="persistent://TENANT/NAMESPACE/NAME", show_default=False)],
    force: Annotated[
        bool,
        typer.Option("--force", help="Migrate while v4 clients use it. They can then read old messages, not produce."),
    ] = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Turn a persistent:// topic into a scalable one, with its messages and subscriptions. This cannot be undone."""
    with one_sentence("tidewire topics"):
        _administration(data_dir, http).migrate(topic, force=force)
        typer.echo(f"migrated {topic} to {topic.replace('persistent', 'topic', 1)}")


@app.command("delete")
def delete(
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it even while in use: disconnect its clients.")
    ] = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """Delete a scalable topic with its messages and subscriptions."""
    with one_sentence("tidewire topics"):
        _administration(data_dir, http).delete(topic, force=force)
        typer.echo(f"deleted {topic}")


def _administration(data_dir: Path, http: str | None) -> "Administration":
    from tidewire.cli.administration import Administration

    return Administration(*addresses(data_dir, http))


def _print(topic: str, layout: dict[str, Any], statistics: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"{topic}  epoch {layout['epoch']}", soft_wrap=True)
    for key, value in sorted(layout["properties"].items()):
        console.print(f"  {key}={value}", soft_wrap=True, markup=False)
    segments = Table("segment", "hash range", "state", "parents", "children")
    for segment in sorted(layout["segments"].values(), key=lambda segment: int(segment["segmentId"])):
        hash_range = segment["hashRange"]
        segments.add_row(
            str(segment["segmentId"]),
            f"{hash_range['start']:04x}-{hash_range['end']:04x}",
            str(segment["state"]).lower(),
            " ".join(map(str, segment["parentIds"])),
            " ".join(map(str, segment["childIds"])),
        )
    console.print(segments)
    _print_subscriptions(console, statistics)


def _print_regular(topic: str, statistics: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    count = int(statistics["partitions"])
    console.print(f"{topic}  {count} partition{'' if count == 1 else 's'}", soft_wrap=True, markup=False)
    _print_subscriptions(console, statistics)


def _print_subscriptions(console: "Console", statistics: dict[str, Any]) -> None:
    """Print the subscriptions, and groups of Kafka's consumers beside them. Two of them may have one name."""
    from rich.table import Table

    rows = [(name, str(counted["type"]).lower(), counted) for name, counted in statistics["subscriptions"].items()]
    groups = statistics.get("kafkaGroups", {})
    rows += [(name, f"kafka group, {str(counted['state']).lower()}", counted) for name, counted in groups.items()]
    if rows:
        table = Table("subscription", "type", "consumers", "backlog")
        for name, kind, counted in sorted(rows, key=lambda row: row[:2]):
            table.add_row(name, kind, str(counted["consumerCount"]), str(counted["msgBacklog"]))
        console.print(table)
