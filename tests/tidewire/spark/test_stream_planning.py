"""What plans a stream's micro-batches, over brokers in memory."""

import pytest

from tests.tidewire.spark.readable import LEDGER, TOPIC, Readable, batch, segment
from tidewire.spark import streaming
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import Offsets, Place
from tidewire.spark.positions import Position
from tidewire.spark.streaming import _Planner

NAME = "0000-ffff-0"
WIRE = f"segment://public/default/x/{NAME}"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "RETRY_SECONDS", 0.0)


def world_of(*entries: bytes) -> Readable:
    world = Readable()
    world.dag.segments.append(segment(0, 0, 0xFFFF))
    world.add(WIRE, entries)
    return world


def read_to(entry: int) -> Offsets:
    """Entries have one message each."""
    return {TOPIC: {NAME: Place(Position(LEDGER, entry), entry + 1)}}


@pytest.mark.parametrize("stops", [False, True])
def test_a_connection_that_breaks_is_not_the_end_of_what_there_is(stops: bool) -> None:
    """D8: Spark takes "nothing new" for the end of a query that is to stop at what there is, and asks others again."""
    world = world_of(batch(b"a"), batch(b"b"), batch(b"c"))
    planner = _Planner(world.options, world._connect)
    if stops:
        planner.stop_at_present()
    end = planner.next(planner.first(), Limit(messages=1))
    world.append(WIRE, batch(b"d"))
    world.peers[-1][2].hang_up()
    if not stops:
        assert planner.next(end, Limit(messages=1)) == end
    assert planner.next(end, Limit(messages=1)) == read_to(1)
    assert planner.next(read_to(1), Limit()) == read_to(2 if stops else 3)
