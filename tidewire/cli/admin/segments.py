"""`tidewire segments`: list, show, split and merge the segments of a scalable topic."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from tidewire.cli.admin.pushed_views import pushed_topic, segment_place
from tidewire.cli.admin.statistics import View, topic_view
from tidewire.cli.admin.watching import pushed, show_each
from tidewire.cli.asking import Brokers
from tidewire.cli.cluster.addresses import DATA_DIR_DEFAULT, DataDir, Http, addresses
from tidewire.cli.endings import CommandFailed, one_sentence, while_somebody_reads
from tidewire.cli.output import Cell, Json, Watch, fields, moment, print_json, table, tell
from tidewire.cli.topic_paths import TopicPath, scalable_path

app: Final = typer.Typer(help="List, show, split and merge the segments of a topic.", no_args_is_help=True)

COMMAND: Final = "tidewire segments"
_NO_SEGMENTS: Final = "It has partitions instead of segments. `tidewire topics stats` shows them."

Topic = Annotated[str, typer.Argument(help="topic://TENANT/NAMESPACE/NAME", show_default=False)]
Segment = Annotated[
    int, typer.Argument(min=0, help="The segment's number, from `tidewire segments list`.", show_default=False)
]
Neighbour = Annotated[
    int, typer.Argument(min=0, help="An active segment beside it in the hash range.", show_default=False)
]
AllowFewer = Annotated[
    bool, typer.Option("--allow-fewer", help="Even if fewer are left than the topic was created with.")
]


@app.command("list")
def list_all(
    topic: Topic,
    active: Annotated[bool, typer.Option("--active", help="Only segments that take messages.")] = False,
    watch: Watch = False,
    as_json: Json = False,
    data_dir: DataDir = DATA_DIR_DEFAULT,
    http: Http = None,
) -> None:
    """List a topic's segments: their hash ranges, parents, children and sizes, and the largest backlog on each."""
    with one_sentence(COMMAND), while_somebody_reads():
        path = scalable_path(topic, _NO_SEGMENTS)

        def chosen(views: list[View]) -> list[View]:
            return [view for view in views if view["state"] == "active"] if active else views

        asked = addresses(data_dir, http)
        if watch:
            pushes = pushed(asked, "topic", name=topic)
            show_each((chosen(pushed_topic(path, parts)["parts"]) for parts in pushes), _listed, as_json)
            return
        shown = chosen(segment_views(Brokers(*asked), path))
        if as_json:
            print_json(shown)
        else:
            typer.echo(_listed(shown))


@app.command("show")
@app.command("stats", help="The same as show.")
def show(
    topic: Topic, segment: Segment, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
) -> None:
    """Show a segment: its place in the topic, its counters and its subscriptions."""
    with one_sentence(COMMAND):
        path = scalable_path(topic, _NO_SEGMENTS)
        found = [one for one in segment_views(Brokers(*addresses(data_dir, http)), path) if one["segment"] == segment]
        if not found:
            raise CommandFailed(
                f"{topic} has no segment {segment}. `tidewire segments list` shows the segments that it has."
            )
        if as_json:
            print_json(found[0])
        else:
            typer.echo(_shown(found[0]))


def add_changes(commands: typer.Typer, command: str, why: str) -> None:
    """Add `split` and `merge` to a group of commands.

    Args:
        commands: the group.
        command: what its errors begin with, such as `tidewire segments`.
        why: what a refusal says of a topic without segments.
    """

    @commands.command("split")
    def split(
        topic: Topic, segment: Segment, as_json: Json = False, data_dir: DataDir = DATA_DIR_DEFAULT, http: Http = None
    ) -> None:
        """Split a segment into two. Producers and consumers continue meanwhile."""
        with one_sentence(command):
            path = scalable_path(topic, why)
            _split(Brokers(*addresses(data_dir, http)), path, segment, as_json)

    @commands.command("merge")
    def merge(
        topic: Topic,
        first: Segment,
        second: Neighbour,
        allow_fewer: AllowFewer = False,
        as_json: Json = False,
        data_dir: DataDir = DATA_DIR_DEFAULT,
        http: Http = None,
    ) -> None:
        """Merge two adjacent segments into one. Producers and consumers continue meanwhile."""
        with one_sentence(command):
            path = scalable_path(topic, why)
            _merge(Brokers(*addresses(data_dir, http)), path, first, second, allow_fewer, as_json)


add_changes(app, COMMAND, _NO_SEGMENTS)


def _split(brokers: Brokers, path: TopicPath, segment: int, as_json: bool) -> None:
    """Split a segment, and tell into which. They take messages when this returns.

    Raises:
        NotAnswered: no broker answered.
        NotAccepted: the broker refused.
    """
    brokers.ask("POST", f"{path.root}/split/{segment}")
    children = _children(brokers, path, segment)
    into = " and ".join(map(str, children))
    sentence = f"split segment {segment} of {path.topic} into {into}"
    tell(sentence, as_json, topic=path.topic, split=segment, into=children)


def _merge(brokers: Brokers, path: TopicPath, first: int, second: int, allow_fewer: bool, as_json: bool) -> None:
    """Merge two adjacent segments, and tell into which. It takes messages when this returns.

    Raises:
        NotAnswered: no broker answered.
        NotAccepted: the broker refused.
    """
    brokers.ask("POST", f"{path.root}/merge/{first}/{second}", [("allowFewer", "true" if allow_fewer else "false")])
    children = _children(brokers, path, first)
    into = " and ".join(map(str, children))
    sentence = f"merged segments {first} and {second} of {path.topic} into {into}"
    tell(sentence, as_json, topic=path.topic, merged=[first, second], into=children)


def segment_views(brokers: Brokers, path: TopicPath) -> list[View]:
    """Return the topic's segments in the order of their numbers, each with its place in the layout.

    Raises:
        NotAnswered: no broker answered.
        NotAccepted: the broker refused, or the topic does not exist.
    """
    layout: Mapping[str, Any] = brokers.ask("GET", path.root)["segments"]
    counted = {part["segment"]: part for part in topic_view(brokers, path)["parts"]}
    # A split between the two answers makes segments of which only one of them knows.
    both = sorted(number for number in map(int, layout) if number in counted)
    return [{**segment_place(layout[str(number)]), **counted[number], "topic": path.topic} for number in both]


def _children(brokers: Brokers, path: TopicPath, segment: int) -> list[int]:
    placed = brokers.ask("GET", path.root)["segments"].get(str(segment), {})
    return [int(child) for child in placed.get("childIds", ())]


def _listed(views: list[View]) -> str:
    columns = ("segment", "hash range", "state", "parents", "children", "messages in", "stored bytes", "backlog")
    return table(
        columns,
        [
            (
                str(one["segment"]),
                one["hashRange"],
                one["state"],
                _numbers(one["parents"]),
                _numbers(one["children"]),
                one["messagesIn"],
                one["storedBytes"],
                max((counted["backlog"] for counted in one["subscriptions"].values()), default=0),
            )
            for one in views
        ],
    )


def _shown(view: View) -> str:
    facts: list[tuple[str, Cell]] = [
        ("segment", view["part"]),
        ("state", view["state"]),
        ("hash range", view["hashRange"]),
        ("parents", _numbers(view["parents"])),
        ("children", _numbers(view["children"])),
        ("created", moment(view["createdAtMs"])),
        ("sealed", moment(view["sealedAtMs"])),
        ("messages in", view["messagesIn"]),
        ("messages out", view["messagesOut"]),
        ("stored bytes", view["storedBytes"]),
        ("producers", view["producers"]),
    ]
    rows = [
        (name, one["type"], one["consumers"], one["backlog"], one["backlogBytes"], one["unackedMessages"])
        for name, one in sorted(view["subscriptions"].items())
    ]
    columns = ("subscription", "type", "consumers", "backlog", "bytes", "unacknowledged")
    return fields(facts) + (f"\n\n{table(columns, rows)}" if rows else "")


def _numbers(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))
