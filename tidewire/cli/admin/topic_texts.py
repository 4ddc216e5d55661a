"""Topics as people read them in `tidewire topics`."""

from typing import TYPE_CHECKING

from tidewire.cli.admin.statistics import View
from tidewire.cli.admin.subscriptions import listed as subscriptions_listed
from tidewire.cli.output import plain_console, table

if TYPE_CHECKING:
    from rich.console import Console


def print_layout(topic: str, layout: View, statistics: View) -> None:
    """Print a scalable topic: its segments, and who reads it."""
    from rich.table import Table

    console = plain_console()
    console.print(f"{topic}  epoch {layout['epoch']}", soft_wrap=True)
    for key, value in sorted(layout["properties"].items()):
        console.print(f"  {key}={value}", soft_wrap=True)
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


def print_regular(topic: str, statistics: View) -> None:
    """Print a regular topic: its partitions, and who reads it."""
    console = plain_console()
    count = int(statistics["partitions"])
    console.print(f"{topic}  {count} partition{'' if count == 1 else 's'}", soft_wrap=True)
    _print_subscriptions(console, statistics)


def statistics_text(view: View) -> str:
    """Return a topic's counters: all parts, and the subscriptions over all of them."""
    rows = [
        (
            one["part"].rpartition("/")[2],
            one.get("state"),
            one["messagesIn"],
            one["bytesIn"],
            one["messagesOut"],
            one["bytesOut"],
            one["storedBytes"],
            one["producers"],
        )
        for one in view["parts"]
    ]
    total = [view[name] for name in ("messagesIn", "bytesIn", "messagesOut", "bytesOut", "storedBytes", "producers")]
    if len(rows) > 1:
        rows.append(("total", None, *total))
    columns = ("part", "state", "messages in", "bytes in", "messages out", "bytes out", "stored bytes", "producers")
    blocks = [view["topic"], table(columns, rows)]
    if view["subscriptions"]:
        blocks.append(subscriptions_listed(view["subscriptions"]))
    return "\n\n".join(blocks)


def _print_subscriptions(console: "Console", statistics: View) -> None:
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
