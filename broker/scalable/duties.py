"""What a segment's owner has to do, by the layout of its topic. Pure.

The controller of a topic opens no segment. It writes into the layout what has to happen, and each owner does it for its
own segments:

| the layout says                           | the owner                                                      |
|-------------------------------------------|----------------------------------------------------------------|
| a subscription is being created           | makes its cursor at the subscription's start                   |
| it exists, and the owner has not opened   | opens it: the cursor was made, and the owner did not learn so  |
| its cursor                                |                                                                |
| a subscription is being deleted           | removes its cursor, and what transactions acknowledged there   |
| the segment is replaced by its children   | seals it, once clients know the children                       |
| the segment is pruned, or the topic is    | disconnects clients, removes the data and gives the segment    |
| being deleted                             | up, so that the controller can forget it                       |

Each duty may be repeated. Whether one is done shows in the metadata store: in the cursors, in the record of the managed
ledger, and in the claim. So nobody has to report it.
"""

from collections.abc import Container
from typing import Final, NamedTuple

from broker.layouts.layout import Layout
from broker.layouts.legacy import segment_in
from broker.layouts.parts import StartPosition
from broker.names import TopicName


class Duties(NamedTuple):
    """What the owner of one segment has to do."""

    makes: tuple[tuple[str, StartPosition], ...] = ()
    """Subscriptions that need a cursor, and where it begins."""
    opens: tuple[str, ...] = ()
    """Subscriptions that have a cursor, although the segment does not know it."""
    removes: tuple[str, ...] = ()
    """Subscriptions whose cursor has to go."""
    seals: bool = False
    lets_go: bool = False


GIVE_UP: Final = Duties(lets_go=True)


def duties_of(layout: Layout | None, name: TopicName, *, subscriptions: Container[str], is_replaced: bool) -> Duties:
    """Return what the owner of a segment has to do.

    Args:
        layout: the topic's stored layout; None if there is none.
        name: the segment, or a regular topic that a migration made a segment.
        subscriptions: those that the segment has.
        is_replaced: whether the segment is sealed, and its clients were told.
    """
    segment = None if layout is None else segment_in(layout, name)
    if layout is None or layout.is_deleting or segment is None:
        return GIVE_UP
    living = layout.subscriptions.items()
    return Duties(
        makes=tuple(
            (subscription, made.start)
            for subscription, made in living
            if made.is_creating and not made.is_deleting and subscription not in subscriptions
        ),
        opens=tuple(
            subscription
            for subscription, made in living
            if not made.is_creating and not made.is_deleting and subscription not in subscriptions
        ),
        removes=tuple(subscription for subscription, made in living if made.is_deleting),
        seals=not segment.is_active and not is_replaced,
    )
