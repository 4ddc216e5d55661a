"""Draws which room imports which, for ARCHITECTURE.md.

    python scripts/import_graph.py            # print the graph as Mermaid
    python scripts/import_graph.py --write    # put it into ARCHITECTURE.md
    python scripts/import_graph.py --check    # exit 1 if ARCHITECTURE.md has another one

The rooms are folders, but the broker's own modules form four: what starts a broker, one broker, what owns topics, and
basics that import no other room of the broker. An arrow from A to C is left out where
arrows lead from A to B and from B to C. Imports for the type checker count.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from grimp import build_graph

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "ARCHITECTURE.md"
BEGIN: Final = "<!-- import graph: scripts/import_graph.py --write -->\n"
END: Final = "<!-- import graph: end -->\n"

PACKAGES: Final = ("tidewire", "broker", "dispatch", "storage", "txn")

FOLDERS: Final = (
    "tidewire.cli",
    "tidewire.client",
    "tidewire.protocol",
    "tidewire.spark",
    "tidewire.testing",
    "tidewire.wire",
    "broker.kafka",
    "broker.pulsar",
    "broker.console",
    "broker.http",
    "broker.scalable",
    "broker.layouts",
    "broker.cluster",
    "broker.schemas",
    "broker.deduplication",
    "broker.doctor",
    "dispatch",
    "txn",
    "storage",
)
"""A module belongs to the first of these that it is in."""

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "broker: start": ("main", "beginning", "front_ends", "metadata_sessions", "registration", "startup_errors"),
    "broker: one broker": (
        "broker",
        "administration",
        "cluster_administration",
        "consumer_reports",
        "handover",
        "leftovers",
        "log_owners",
        "live",
        "message_administration",
        "partition_removal",
        "regular_administration",
        "schema_administration",
        "topic_statistics",
        "series_monitor",
        "topic_series",
    ),
    "broker: topics": (
        "topics",
        "topic_claims",
        "topic",
        "namespaces",
        "topic_existence",
        "topic_publishing",
        "topic_removal",
        "topic_services",
        "topic_source",
        "backlogs",
        "unloaded_backlogs",
        "unread",
        "durable_subscriptions",
        "read_uncommitted",
        "retention_policies",
        "trimming",
        "administration_contract",
        "backlog",
        "internal_statistics",
        "peek_contract",
        "peeked_entries",
        "peeking",
        "regular_contract",
        "schema_contract",
        "live_contract",
        "live_log",
        "own_load",
        "peers",
        "segment_requests",
    ),
}
"""The broker's own modules by room; every other one is in BASICS."""

BASICS: Final = "broker: basics"

COMMAND: Final = {"tidewire.__main__": "tidewire.cli"}
"""Modules that belong to the command line, although they are not in its folder."""

Edges = set[tuple[str, str]]


class RoomCycle(Exception):
    """Rooms import each other in a circle."""


def room_of(module: str) -> str:
    """The room that a module is in."""
    if module in COMMAND:
        return COMMAND[module]
    for folder in FOLDERS:
        if module == folder or module.startswith(f"{folder}."):
            return folder
    package, _, name = module.partition(".")
    if package != "broker":
        return package
    return next((room for room, names in MODULES.items() if name in names), BASICS)


def between_rooms(imports: Iterable[tuple[str, str]]) -> Edges:
    """Which room imports which, by (importer, imported) of modules."""
    rooms = {(room_of(importer), room_of(imported)) for importer, imported in imports}
    return {(upper, lower) for upper, lower in rooms if upper != lower}


def reduced(edges: Edges) -> Edges:
    """Without the edges that follow from others.

    Raises:
        RoomCycle: there is a circle.
    """
    below: dict[str, set[str]] = {}

    def reach(room: str, path: tuple[str, ...]) -> set[str]:
        if room in path:
            raise RoomCycle(" -> ".join((*path[path.index(room) :], room)))
        if room not in below:
            lower = {low for up, low in edges if up == room}
            below[room] = lower.union(*(reach(low, (*path, room)) for low in sorted(lower)))
        return below[room]

    for upper, _ in sorted(edges):
        reach(upper, ())
    return {
        (upper, lower)
        for upper, lower in edges
        if not any(lower in below[other] for up, other in edges if up == upper and other in below)
    }


def mermaid(edges: Edges) -> str:
    """The graph as a fenced Mermaid flowchart, importers on top."""
    rooms = sorted({room for edge in edges for room in edge})
    lines = ["```mermaid", "flowchart TD"]
    lines += [f'    {_identifier(room)}["{room}"]' for room in rooms]
    lines += [f"    {_identifier(upper)} --> {_identifier(lower)}" for upper, lower in sorted(edges)]
    return "\n".join([*lines, "```", ""])


def _identifier(room: str) -> str:
    return room.replace(": ", "_").replace(" ", "_").replace(".", "_")


def drawn() -> str:
    """The graph of this checkout."""
    graph = build_graph(*PACKAGES, cache_dir=None)
    modules = sorted(graph.modules)
    return mermaid(
        reduced(
            between_rooms(
                (importer, imported)
                for importer in modules
                for imported in graph.find_modules_directly_imported_by(importer)
            )
        )
    )


def in_page(page: str, graph: str) -> str:
    """The page with `graph` between the markers."""
    head, _, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not end:
        raise ValueError(f"{PAGE.name} lacks the lines {BEGIN.strip()} and {END.strip()}")
    return head + BEGIN + graph + END + tail


def main() -> int:
    """Print, write or check the graph; the exit status."""
    parser = argparse.ArgumentParser(description="Draw which room imports which.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="put the graph into ARCHITECTURE.md")
    what.add_argument("--check", action="store_true", help="exit 1 if ARCHITECTURE.md has another graph")
    asked = parser.parse_args()
    try:
        graph = drawn()
    except RoomCycle as cycle:
        print(f"Rooms import each other: {cycle}", file=sys.stderr)
        return 1
    if not asked.write and not asked.check:
        print(graph, end="")
        return 0
    page = PAGE.read_text(encoding="utf-8")
    wanted = in_page(page, graph)
    if asked.write:
        PAGE.write_text(wanted, encoding="utf-8")
    elif page != wanted:
        print("ARCHITECTURE.md draws another import graph. Run scripts/import_graph.py --write.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
