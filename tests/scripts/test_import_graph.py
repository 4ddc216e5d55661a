"""The drawing of the import graph, and that ARCHITECTURE.md has the current one."""

from pathlib import Path
from typing import Final

import pytest

from scripts import import_graph
from scripts.import_graph import (
    BASICS,
    BEGIN,
    END,
    FOLDERS,
    MODULES,
    RoomCycle,
    between_rooms,
    in_page,
    reduced,
    room_of,
)

ROOT: Final = Path(__file__).parents[2]


def test_the_page_draws_what_the_code_imports() -> None:
    page = import_graph.PAGE.read_text(encoding="utf-8")
    assert page == in_page(page, import_graph.drawn()), "run scripts/import_graph.py --write"


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("broker.pulsar.session", "broker.pulsar"),
        ("broker.topic", "broker: topics"),
        ("broker.names", BASICS),
        ("storage.metadata.store", "storage"),
        ("tidewire", "tidewire"),
        ("tidewire.client.reader", "tidewire.client"),
    ],
)
def test_a_module_is_in_one_room(module: str, room: str) -> None:
    assert room_of(module) == room


def test_every_room_is_there() -> None:
    assert all((ROOT / folder.replace(".", "/")).is_dir() for folder in FOLDERS)
    assert all((ROOT / "broker" / f"{name}.py").is_file() for names in MODULES.values() for name in names)


def test_imports_within_a_room_are_not_drawn() -> None:
    imports = [("txn.buffer", "txn.ops"), ("txn.buffer", "storage.entry"), ("txn.ops", "storage.entry")]
    assert between_rooms(imports) == {("txn", "storage")}


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    below = {("a", "b"), ("b", "c"), ("c", "d")}
    assert reduced(below | {("a", "c"), ("a", "d"), ("b", "d")}) == below
    fork = {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}
    assert reduced(fork) == fork


def test_rooms_in_a_circle_are_refused() -> None:
    with pytest.raises(RoomCycle, match=r"^b -> c -> b$"):
        reduced({("a", "b"), ("b", "c"), ("c", "b")})


def test_the_text_around_the_graph_stays() -> None:
    assert in_page(f"before\n{BEGIN}old\n{END}after\n", "new\n") == f"before\n{BEGIN}new\n{END}after\n"
    with pytest.raises(ValueError, match="lacks the lines"):
        in_page(f"before\n{BEGIN}old\n", "new\n")
