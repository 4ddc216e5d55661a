"""The model detects each promise, broken by hand."""

from collections.abc import Callable

import pytest

from tests.model.promises import Ack, BrokenPromise, Fate, Message, Place, Subscription, Txn, World

TOPIC = "topic://public/default/t0"
PARENT, CHILD = "parent", "child"


def at(entry: int, segment: str = PARENT) -> Place:
    return Place(segment, 1, entry)


class Told:
    """A world with one message, a transaction that wrote another one, and an ordered subscription."""

    def __init__(self) -> None:
        self.world = World()
        self.ordered: Subscription = self.world.subscribed(TOPIC, "stream", is_ordered=True)
        self.plain: Message = self.world.sent(TOPIC, "a", None)
        self.world.stored(self.plain, at(0))
        self.txn: Txn = self.world.begun(open_until=10)
        self.written: Message = self.world.sent(TOPIC, "a", self.txn)
        self.world.stored(self.written, at(1))

    def comes(self, message: Message, *, now: float = 0) -> None:
        assert message.place is not None
        self.world.delivered(self.ordered, message.number, message.place, now)

    def acknowledge(self, message: Message, txn: Txn | None = None) -> list[Ack]:
        acks = self.world.asked_to_acknowledge(self.ordered, [message.number], txn)
        self.world.acknowledged(acks)
        self.world.settled()
        return acks

    def end(self, fate: Fate, *, now: float = 0) -> None:
        self.txn.asked.add(fate)
        self.world.ended(self.txn, fate, now)

    def send(self, place: Place, *, key: str = "a") -> Message:
        message = self.world.sent(TOPIC, key, None)
        self.world.stored(message, place)
        return message


def aborted_seen(told: Told) -> None:
    told.end(Fate.ABORTED)
    told.comes(told.written)


def behind_an_open_one(told: Told) -> None:
    told.comes(told.send(at(2)))


def out_of_order(told: Told) -> None:
    told.end(Fate.COMMITTED)
    told.comes(told.written)
    told.comes(told.plain)


def child_before_parent(told: Told) -> None:
    told.comes(told.plain)
    told.comes(told.send(at(0, CHILD)))


def moved(told: Told) -> None:
    told.world.delivered(told.ordered, told.plain.number, at(5), 0)


def in_one_place(told: Told) -> None:
    told.send(at(0))


def acknowledged_again(told: Told) -> None:
    told.comes(told.plain)
    told.acknowledge(told.plain)
    told.comes(told.plain)


def pending_again(told: Told) -> None:
    told.comes(told.plain)
    told.acknowledge(told.plain, told.txn)
    told.comes(told.plain)


def taken_late(told: Told) -> None:
    told.end(Fate.COMMITTED)
    told.world.stored(told.world.sent(TOPIC, "a", told.txn), at(2))


def acknowledged_late(told: Told) -> None:
    told.end(Fate.ABORTED)
    told.acknowledge(told.plain, told.txn)


def taken_twice(told: Told) -> None:
    first = told.acknowledge(told.plain, told.txn)
    told.world.acknowledged_twice(first, told.world.asked_to_acknowledge(told.ordered, [told.plain.number], told.txn))


def decided_twice(told: Told) -> None:
    told.end(Fate.COMMITTED)
    told.end(Fate.ABORTED)


def timed_out_early(told: Told) -> None:
    told.world.ended(told.txn, Fate.ABORTED, 9)


def refused_and_stored(told: Told) -> None:
    message = told.world.sent(TOPIC, "a", None)
    told.world.refused(message)
    told.world.stored(message, at(2))


def readable_goes_back(told: Told) -> None:
    told.world.readable_stands_at(PARENT, (1, 1))
    told.world.readable_stands_at(PARENT, (1, 0))


def lost(told: Told) -> None:
    told.world.check_drained(told.ordered, [])


def half_of_a_transaction(told: Told) -> None:
    told.end(Fate.COMMITTED)
    told.comes(told.plain)
    told.world.check_drained(told.ordered, [told.plain.number])


def committed_acknowledgement_undone(told: Told) -> None:
    told.comes(told.plain)
    told.acknowledge(told.plain, told.txn)
    told.end(Fate.COMMITTED)
    told.comes(told.plain)


def aborted_acknowledgement_kept(told: Told) -> None:
    told.comes(told.plain)
    told.acknowledge(told.plain, told.txn)
    told.end(Fate.ABORTED)
    told.world.check_nothing_waits(told.ordered)


@pytest.mark.parametrize(
    "broken",
    [
        aborted_seen,
        behind_an_open_one,
        out_of_order,
        child_before_parent,
        moved,
        in_one_place,
        acknowledged_again,
        pending_again,
        taken_late,
        taken_twice,
        acknowledged_late,
        decided_twice,
        timed_out_early,
        refused_and_stored,
        readable_goes_back,
        lost,
        half_of_a_transaction,
        committed_acknowledgement_undone,
        aborted_acknowledgement_kept,
    ],
)
def test_the_model_refuses_what_breaks_a_promise(broken: Callable[[Told], None]) -> None:
    told = Told()
    with pytest.raises(BrokenPromise):
        broken(told)


def test_the_model_takes_what_keeps_them() -> None:
    told = Told()
    told.comes(told.plain)
    told.comes(told.plain)
    told.acknowledge(told.plain, told.txn)
    told.end(Fate.COMMITTED)
    told.comes(told.written)
    told.acknowledge(told.written)
    told.comes(told.send(at(0, CHILD)))
    told.world.check_drained(told.ordered, [2])
