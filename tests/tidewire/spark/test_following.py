"""How a stream follows topics in memory."""

import json
from dataclasses import replace

import pytest

from tests.tidewire.spark.followed import OPTIONS, StoredSegment, Topics, X
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.spark.errors import DataLost
from tidewire.spark.following import Follower, Lag
from tidewire.spark.layouts import LayoutChanged
from tidewire.spark.limits import Limit
from tidewire.spark.offsets import BEGINNING, Offsets, encode
from tidewire.spark.options import Pattern, ReadOptions
from tidewire.spark.positions import LATEST_START, Boundary, parse_boundary
from tidewire.spark.views import Snapshot


def following(topics: Topics, options: ReadOptions = OPTIONS) -> Follower:
    return Follower(options, topics)


def go(topics: Topics, start: Offsets, limit: Limit = Limit(), options: ReadOptions = OPTIONS) -> Offsets:  # noqa: B008
    return following(topics, options).step(start, limit).end


def test_a_sealed_segment_is_read_to_its_end_before_its_children_are_begun() -> None:
    """T20: an offset at the end of the data does not change."""
    topics = Topics()
    parent = topics.add("0000-ffff-0", 2, 3)
    start = following(topics).first()
    assert encode(start) == {X: {"0000-ffff-0": "-1:-1@0"}}
    one = go(topics, start)
    assert encode(one) == {X: {"0000-ffff-0": "1:1@5"}}
    assert go(topics, one) == one
    topics.add("0000-7fff-1", 1, parents=(0,))
    topics.add("8000-ffff-2", parents=(0,))
    # An open transaction may still add to the parent.
    assert go(topics, one) == one
    parent.entries.append(4)
    parent.is_final = True
    two = go(topics, one)
    assert encode(two) == {X: {"0000-ffff-0": "1:2@9"}}
    three = go(topics, two)
    assert encode(three) == {X: {"0000-7fff-1": "2:0@1", "8000-ffff-2": "-1:-1@0"}}
    assert go(topics, three) == three


def test_a_segment_is_not_left_before_the_layout_says_what_came_of_it() -> None:
    """T20: a split may finish between the layout's arrival and the question what is left to read."""
    topics = Topics()
    parent = topics.add("0000-ffff-0", 2)
    for starting in (EARLIEST, LATEST):
        parent.is_final = False
        before = topics.late_layouts[X] = topics.parts(X) or {}
        start = go(topics, following(topics).first())
        parent.is_final = True
        options = replace(OPTIONS, starting=Boundary(starting))
        assert following(topics, options).first()[X].keys() == before.keys()
        assert go(topics, start) == start
        topics.late_layouts.clear()
    topics.add("0000-7fff-1", 1, parents=(0,))
    topics.add("8000-ffff-2", parents=(0,))
    assert go(topics, start)[X].keys() == {"0000-7fff-1", "8000-ffff-2"}


@pytest.mark.parametrize("starting", [EARLIEST, LATEST])
def test_a_topic_without_segments_that_ends_is_read_once(starting: EntryPosition) -> None:
    """A segment that is a regular topic ends like this; nothing says what replaced it."""
    topics = Topics()
    plain = "persistent://public/default/x"
    made = StoredSegment(Segment(plain, None, plain), 1, [2, 3])
    topics.segments[plain] = {"": made}
    options = replace(OPTIONS, topics=(plain,), starting=Boundary(starting))
    end = go(topics, following(topics, options).first(), options=options)
    made.is_final = True
    assert encode(end) == {plain: {"": "1:1@5"}}
    assert go(topics, end, options=options) == end
    assert encode(go(topics, following(topics, options).first(), options=options)) == encode(end)


def test_generations_that_are_empty_are_passed_at_once() -> None:
    topics = Topics()
    topics.add("0000-ffff-0").is_final = True
    topics.add("0000-7fff-1", parents=(0,)).is_final = True
    topics.add("8000-ffff-2", parents=(0,))
    topics.add("0000-3fff-3", 7, parents=(1,))
    topics.add("4000-7fff-4", parents=(1,))
    assert set(go(topics, {X: {"0000-ffff-0": BEGINNING}})[X]) == {"8000-ffff-2", "0000-3fff-3", "4000-7fff-4"}


def test_who_knows_how_far_each_segment_was_read_goes_on_there() -> None:
    """T20: it continues with the unread segments whose parents are read."""
    topics = Topics()
    topics.add("0000-ffff-0", 2).is_final = True
    topics.add("0000-7fff-1", 3, 3, parents=(0,)).is_final = True
    topics.add("8000-ffff-2", 1, parents=(0,))
    topics.add("0000-3fff-3", 5, parents=(1,))
    read = {"0000-ffff-0": EntryPosition(1, 0), "0000-7fff-1": EntryPosition(2, 0)}

    def goes_on() -> dict[str, dict[str, str]]:
        return encode(following(topics).resumed(lambda part: read.get(part.name or "", EARLIEST)))

    assert goes_on() == {X: {"0000-7fff-1": "2:0@3", "8000-ffff-2": "-1:-1@0"}}
    read["0000-7fff-1"] = EntryPosition(2, 1)
    read["8000-ffff-2"] = EntryPosition(3, 0)
    assert goes_on() == {X: {"0000-3fff-3": "-1:-1@0", "8000-ffff-2": "3:0@1"}}
    read.clear()
    assert goes_on() == {X: {"0000-ffff-0": "-1:-1@0"}}


def test_a_stream_of_the_latest_has_nothing_of_what_was_committed_before() -> None:
    topics = Topics()
    topics.add("0000-ffff-0", 2).is_final = True
    half = topics.add("0000-7fff-1", 3, parents=(0,))
    topics.add("8000-ffff-2", 1, 1, parents=(0,))
    topics.add("0000-7fff-3", 5, parents=(1,))
    options = replace(OPTIONS, starting=LATEST_START)
    first = following(topics, options).first()
    # The one in the middle is sealed, and what a transaction that is still open wrote there is yet to come.
    assert encode(first) == {X: {"0000-7fff-1": "2:0@3", "8000-ffff-2": "3:1@2", "0000-7fff-3": "4:0@5"}}
    assert go(topics, first) == first
    half.entries.append(4)
    half.is_final = True
    assert encode(go(topics, first))[X]["0000-7fff-1"] == "2:1@7"


def test_a_stream_may_begin_at_a_time_or_at_positions() -> None:
    topics = Topics()
    topics.add("0000-ffff-0", 1, 1, 1).is_final = True
    topics.add("0000-7fff-1", 1, 1, 1, 1, 1, parents=(0,))
    topics.add("8000-ffff-2", 1, parents=(0,))
    at_4 = following(topics, replace(OPTIONS, starting=Boundary(4))).first()
    assert encode(at_4) == {X: {"0000-7fff-1": "2:3@4", "8000-ffff-2": "3:0@1"}}
    given = parse_boundary(f'{{"{X}": {{"0000-7fff-1": "2:1"}}}}')
    named = following(topics, replace(OPTIONS, starting=given)).first()
    assert encode(named) == {X: {"0000-7fff-1": "2:1@2", "8000-ffff-2": "-1:-1@0"}}
    latest = parse_boundary(f'{{"{X}": {{"0000-7fff-1": "latest"}}}}')
    assert following(topics, replace(OPTIONS, starting=latest)).first()[X]["0000-7fff-1"].position == EntryPosition(
        2, 4
    )


def test_a_position_in_a_segment_that_is_gone_is_data_loss() -> None:
    topics = Topics()
    topics.add("0000-ffff-1", 1)
    given = parse_boundary(f'{{"{X}": {{"0000-ffff-0": "2:1"}}}}')
    options = replace(OPTIONS, starting=given)
    with pytest.raises(DataLost, match=r"has no segment '0000-ffff-0', which starting_position names; set fail_on"):
        following(topics, options).first()
    first = following(topics, replace(options, fail_on_data_loss=False)).first()
    assert encode(first) == {X: {"0000-ffff-1": "-1:-1@0"}}


def test_a_position_in_a_topic_that_is_not_read_is_not_passed_over() -> None:
    """It is usually misspelt, and the whole topic would be read instead."""
    topics = Topics()
    topics.add("0000-ffff-0", 1)
    start = parse_boundary('{"topic://public/default/y": {"0000-ffff-0": "latest"}}')
    with pytest.raises(DataLost, match="names topic://public/default/y, which this query does not read"):
        following(topics, replace(OPTIONS, starting=start)).first()
    lenient = replace(OPTIONS, starting=start, fail_on_data_loss=False)
    assert encode(following(topics, lenient).first()) == {X: {"0000-ffff-0": "-1:-1@0"}}


def test_a_topic_that_is_not_there_is_said() -> None:
    with pytest.raises(DataLost, match=rf"^there is no topic {X}; `tidewire topics create {X}` makes it$"):
        following(Topics()).first()


LOSSY = replace(OPTIONS, fail_on_data_loss=False)


def lost(topics: Topics, start: Offsets, sentence: str) -> Offsets:
    """The query fails, or continues if told to."""
    with pytest.raises(DataLost, match=rf"{sentence}; set fail_on_data_loss to false to continue with what exists$"):
        go(topics, start)
    return go(topics, start, options=LOSSY)


def test_what_was_removed_before_it_was_read_is_data_loss() -> None:
    topics = Topics()
    segment = topics.add("0000-ffff-0", 1, 2, 3, 4)
    start = go(topics, following(topics).first(), Limit(messages=1))
    segment.removed = 3
    assert encode(lost(topics, start, "messages 1 to 5 of .*0000-ffff-0 were removed before they were read")) == {
        X: {"0000-ffff-0": "1:3@10"}
    }


def test_a_topic_made_again_is_data_loss_and_read_from_its_beginning() -> None:
    topics = Topics()
    topics.add("0000-ffff-0", 5)
    start = go(topics, following(topics).first())
    topics.add("0000-ffff-0", 1)
    sentence = "the topic was deleted and created again, .* with a new checkpoint, and from earliest"
    assert encode(lost(topics, start, sentence)) == {X: {"0000-ffff-0": "2:0@1"}}


@pytest.mark.parametrize("read", ["0000-ffff-0", "0000-7fff-0 8000-ffff-1", "0000-3fff-2 4000-7fff-3 8000-ffff-1"])
@pytest.mark.parametrize("made", ["0000-ffff-0", "0000-7fff-0 8000-ffff-1", "0000-3fff-0 4000-ffff-1"])
def test_of_a_topic_made_again_all_segments_are_read(read: str, made: str) -> None:
    """Their numbers or names may equal those of the old topic's segments."""
    topics = Topics()
    for name in read.split():
        topics.add(name, 5)
    start = go(topics, following(topics).first())
    topics.segments.clear()
    for name in made.split():
        topics.add(name, 1)
    with pytest.raises(DataLost):
        go(topics, start)
    end = go(topics, go(topics, start, options=LOSSY), options=LOSSY)
    assert {name: place.next_index for name, place in end[X].items()} == dict.fromkeys(made.split(), 1)


def test_a_deleted_topic_is_data_loss() -> None:
    topics = Topics()
    topics.add("0000-ffff-0", 5)
    start = go(topics, following(topics).first())
    topics.segments.clear()
    assert lost(topics, start, f"topic {X}, which the stream reads, was deleted") == {}


def test_a_segment_removed_before_it_was_read_is_data_loss_and_all_that_came_of_it_is_read() -> None:
    topics = Topics()
    for number, name in enumerate(("0000-7fff-0", "8000-ffff-1")):
        topics.add(name, 5 + number)
    start = go(topics, following(topics).first())
    del topics.segments[X]["0000-7fff-0"]
    # Its children came and went meanwhile.
    topics.add("0000-3fff-4", 1, parents=(2,))
    topics.add("4000-7fff-5", 1, parents=(3,))
    assert encode(
        lost(topics, start, f"segment 0000-7fff-0 of {X} was removed, and the query may not have read all of it")
    ) == {X: {"0000-3fff-4": "3:0@1", "4000-7fff-5": "4:0@1", "8000-ffff-1": "2:0@6"}}


def test_what_waits_for_a_segment_that_is_removed_is_read_and_what_was_read_is_not_read_again() -> None:
    """T20: other segments, with higher and lower numbers, came and went meanwhile."""
    topics = Topics()
    for name in ("0000-7fff-0", "8000-ffff-1"):
        topics.add(name, 1)
    first = following(topics).first()
    topics.segments[X]["8000-ffff-1"].is_final = True
    for name, parents in (("0000-3fff-2", (0,)), ("4000-7fff-3", (0,)), ("8000-bfff-4", (1,)), ("c000-ffff-5", (1,))):
        topics.add(name, 1, parents=parents)
    for name in ("8000-bfff-4", "c000-ffff-5"):
        topics.segments[X][name].is_final = True
    topics.add("8000-ffff-6", 1, parents=(4, 5)).is_final = True
    topics.add("4000-ffff-7", 1, parents=(3, 6))
    start = first
    for _ in range(4):
        start = go(topics, start)
    # What it waits for is decided: an open transaction was aborted. So it may go.
    assert encode(start) == {X: {"0000-7fff-0": "1:0@1"}}
    del topics.segments[X]["0000-7fff-0"]
    for name in ("0000-3fff-2", "4000-7fff-3"):
        segment = topics.segments[X][name]
        segment.part = segment.part._replace(parent_ids=())
    end = Follower(OPTIONS, topics, lambda *place: True).step(start, Limit()).end
    assert encode(end) == {X: {"0000-3fff-2": "3:0@1", "4000-7fff-3": "4:0@1"}}


def test_topics_come_from_their_beginning_and_go() -> None:
    topics = Topics()
    topics.add("0000-ffff-0", 5)
    start = go(topics, following(topics).first())
    other = f"{X}2"
    topics.add("0000-ffff-0", 1, topic=other)
    assert encode(go(topics, start))[other] == {"0000-ffff-0": "2:0@1"}
    del topics.segments[X]
    # A user may take a topic off the list; one of a pattern was deleted.
    assert set(go(topics, start)) == {other}
    pattern = replace(OPTIONS, topics=(), pattern=Pattern("public/default", ".*"))
    with pytest.raises(DataLost, match=f"topic {X}, which the stream reads, was deleted"):
        go(topics, start, options=pattern)


def test_children_whose_turn_comes_are_named_before_anything_is_read_of_them() -> None:
    """E19: another topic may have children of the same names, and its parents would count as read."""
    topics = Topics()
    parent = topics.add("0000-ffff-0", 2)
    parent.creation, parent.is_final = "aa", True
    for name, creation in ("0000-7fff-1", "bb"), ("8000-ffff-2", "cc"):
        topics.add(name, parents=(0,)).creation = creation
    start = go(topics, following(topics).first())
    assert encode(start) == {X: {"0000-ffff-0": "1:0@2#aa"}}
    assert encode(go(topics, start)) == {X: {"0000-7fff-1": "-1:-1@0#bb", "8000-ffff-2": "-1:-1@0#cc"}}


def test_offsets_of_another_topic_are_no_starting_position() -> None:
    """E19: a new query may get the progress of another one; it is checked as carefully."""
    topics = Topics()
    topics.add("0000-ffff-0", 2, 3).creation = "aa"
    given = replace(OPTIONS, starting=parse_boundary(json.dumps({X: {"0000-ffff-0": "1:0@2#aa"}})))
    assert encode(following(topics, given).first()) == {X: {"0000-ffff-0": "1:0@2#aa"}}
    topics.segments[X]["0000-ffff-0"].creation = "bb"
    with pytest.raises(DataLost, match="is not the segment that starting_position names"):
        following(topics, given).first()
    anyway = replace(given, fail_on_data_loss=False)
    assert encode(following(topics, anyway).first()) == {X: {"0000-ffff-0": "-1:-1@0#bb"}}


@pytest.mark.parametrize("entries", [(), (2,), (2, 3), (9, 9, 9)])
@pytest.mark.parametrize("is_read", [False, True])
def test_offsets_of_another_topic_of_that_name_are_never_taken_for_places_in_this_one(
    entries: tuple[int, ...], is_read: bool
) -> None:
    """E19: with any number of messages in the other topic; otherwise rows would be skipped as read."""
    topics = Topics()
    topics.add("0000-ffff-0").is_final = True
    topics.add("0000-7fff-1", 2, 3, parents=(0,)).creation = "aa"
    topics.add("8000-ffff-2", parents=(0,)).creation = "bb"
    start = following(topics).first()
    if is_read:
        start = go(topics, start)
    assert encode(start)[X]["8000-ffff-2"] == "-1:-1@0#bb"
    assert go(topics, start, Limit(messages=1)).keys() == start.keys()
    other = Topics()
    other.add("0000-ffff-0", 7).is_final = True
    other.add("0000-7fff-1", *entries, parents=(0,)).creation = "cc"
    other.add("8000-ffff-2", parents=(0,)).creation = "dd"
    # Ledgers of a new data folder are numbered anew, so nothing else tells.
    for segment, before in zip(other.segments[X].values(), topics.segments[X].values(), strict=True):
        segment.ledger = before.ledger
    with pytest.raises(
        DataLost, match="start the query with a new checkpoint, and from earliest; set fail_on_data_loss"
    ):
        go(other, start)
    end = go(other, start, options=replace(OPTIONS, fail_on_data_loss=False))
    assert encode(end)[X] == {"0000-ffff-0": "1:0@7"}


def test_what_a_limit_leaves_is_the_lag() -> None:
    topics = Topics()
    topics.add("0000-7fff-0", 1, 1, 1, 1)
    topics.add("8000-ffff-1", 2, 2)
    start = following(topics).first()
    step = following(topics).step(start, Limit(messages=4))
    taken = sum(place.next_index for place in step.end[X].values())
    # All of the first moment; the next one would bring as much again.
    assert taken == 3
    assert step.lag == Lag(5, 50, 1)
    assert encode(step.latest) == {X: {"0000-7fff-0": "1:3@4", "8000-ffff-1": "2:1@4"}}
    assert following(topics).step(step.end, Limit()).lag == Lag()
    assert step.lag.report(2_501) == {"messages": 5, "bytes": 50, "seconds": 2.5}
    assert Lag().report(2_501) == {"messages": 0, "bytes": 0, "seconds": 0}


@pytest.mark.parametrize("limit", [Limit(), Limit(messages=2), Limit(size_bytes=30)])
def test_a_snapshot_is_read_to_its_end_and_nothing_that_came_later(limit: Limit) -> None:
    """T20: it also ends if the topic is split after the snapshot, or was split before."""
    topics = Topics()
    topics.add("0000-ffff-0", 1, 2, 1).is_final = True
    half = topics.add("0000-7fff-1", 1, 1, 2, parents=(0,))
    topics.add("8000-ffff-2", parents=(0,))
    start = following(topics).first()
    snapshot = Snapshot(topics)
    half.entries += [5, 5]
    half.is_final = True
    topics.add("0000-3fff-3", 9, parents=(1,))
    topics.add("4000-7fff-4", 9, parents=(1,))
    follower = Follower(OPTIONS, snapshot)
    steps = 0
    while (end := follower.step(start, limit).end) != start:
        start = end
        steps += 1
    assert encode(start) == {X: {"0000-7fff-1": "2:2@4", "8000-ffff-2": "-1:-1@0"}}
    assert steps < 12
    assert go(topics, start) != start


@pytest.mark.parametrize("whole_topic", [False, True])
def test_what_goes_after_a_snapshot_is_data_loss(whole_topic: bool) -> None:
    """T20: when the layout changed, the view is asked again, and must answer differently."""
    topics = Topics()
    topics.add("0000-7fff-0", 1, 1)
    topics.add("8000-ffff-1", 2)
    start = following(topics).first()
    snapshot = Snapshot(topics)
    if whole_topic:
        del topics.segments[X]
    else:
        del topics.segments[X]["0000-7fff-0"]
    with pytest.raises(LayoutChanged):
        Follower(OPTIONS, snapshot).step(start, Limit())
    with pytest.raises(DataLost, match="was deleted" if whole_topic else "0000-7fff-0 of .* was removed"):
        Follower(OPTIONS, snapshot).step(start, Limit())
    end = Follower(replace(OPTIONS, fail_on_data_loss=False), snapshot).step(start, Limit()).end
    assert encode(end) == ({} if whole_topic else {X: {"8000-ffff-1": "2:0@2"}})


def test_a_stream_that_begins_at_a_time_begins_without_what_went_after_its_snapshot() -> None:
    """T20: it is asked again until it knows where to begin."""
    topics = Topics()
    topics.add("0000-7fff-0", 1, 1)
    topics.add("8000-ffff-1", 2)
    snapshot = Snapshot(topics)
    del topics.segments[X]["0000-7fff-0"]
    follower = Follower(replace(OPTIONS, starting=Boundary(1)), snapshot)
    with pytest.raises(LayoutChanged):
        follower.first()
    assert encode(follower.first()) == {X: {"8000-ffff-1": "2:0@2"}}


def test_an_idle_topic_begins_where_latest_is_a_place() -> None:
    topics = Topics()
    topics.add("0000-ffff-0")
    first = following(topics, replace(OPTIONS, starting=Boundary(LATEST))).first()
    assert encode(first) == {X: {"0000-ffff-0": "-1:-1@0"}}
