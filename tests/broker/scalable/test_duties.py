"""What the owner of a segment has to do, by the layout."""

from dataclasses import replace

import pytest

from broker.layouts.layout import Layout, create
from broker.layouts.legacy import migrated_layout
from broker.layouts.parts import LayoutSubscription, StartPosition, SubscriptionKind
from broker.names import TopicName
from broker.scalable.duties import GIVE_UP, Duties, duties_of
from tests.support.rooms import TOPIC

LIVING = LayoutSubscription(SubscriptionKind.STREAM, "i", StartPosition.LATEST, 0)
CREATING = replace(LIVING, is_creating=True)
DELETING = replace(LIVING, is_deleting=True)


def replaced() -> Layout:
    """Return a layout whose segment 0 is replaced, and not sealed yet."""
    begun = create(1, 0, creation_id="c").begin_split(0)
    assert begun.intent is not None
    return begun.replace_segments(begun.intent, 1)


def segment(layout: Layout, segment_id: int) -> TopicName:
    return TOPIC.segment_name(layout.segments[segment_id].descriptor)


@pytest.mark.parametrize(
    ("made", "has_cursor", "expected"),
    [
        (LIVING, True, Duties()),
        (LIVING, False, Duties(opens=("s",))),
        (CREATING, True, Duties()),
        (CREATING, False, Duties(makes=(("s", StartPosition.LATEST),))),
        (DELETING, True, Duties(removes=("s",))),
        (DELETING, False, Duties(removes=("s",))),
        (replace(DELETING, is_creating=True), False, Duties(removes=("s",))),
    ],
)
def test_cursors_follow_the_subscriptions(made: LayoutSubscription, has_cursor: bool, expected: Duties) -> None:
    """C14, D16: a cursor whose creation was interrupted may exist although the segment does not know it."""
    layout = create(1, 0, creation_id="c").add_subscription("s", made)
    known = {"s"} if has_cursor else set()
    assert duties_of(layout, segment(layout, 0), subscriptions=known, is_replaced=False) == expected


def test_a_replaced_segment_is_sealed_once() -> None:
    """C14, D10: also if its controller has seen the seal before its owner got the answer."""
    layout = replaced()
    for later in (layout, layout.finish()):
        assert duties_of(later, segment(layout, 0), subscriptions=(), is_replaced=False).seals
        assert duties_of(later, segment(layout, 0), subscriptions=(), is_replaced=True) == Duties()
        assert duties_of(later, segment(layout, 1), subscriptions=(), is_replaced=False) == Duties()


def test_what_is_no_longer_in_the_layout_is_given_up() -> None:
    """C14: pruned, deleted, made anew with other ranges, or missed entirely."""
    layout = replaced().finish()
    name = segment(layout, 0)
    pruned = layout.prune(0)
    for later in (pruned, pruned.forget(0), layout.begin_deletion(), None, create(2, 0, creation_id="d")):
        assert duties_of(later, name, subscriptions=("s",), is_replaced=True) == GIVE_UP
    assert duties_of(pruned, segment(pruned, 1), subscriptions=(), is_replaced=False) == Duties()


def test_a_migrated_topic_has_the_duties_of_a_segment() -> None:
    regular = TOPIC.as_regular
    layout = migrated_layout(regular, "c", {"s": CREATING}, 0)
    assert duties_of(layout, regular, subscriptions=(), is_replaced=False) == Duties(
        makes=(("s", StartPosition.LATEST),), seals=True
    )
    assert duties_of(layout.begin_deletion(), regular, subscriptions=(), is_replaced=True) == GIVE_UP
