"""The model: what clients did and learned, and what they may expect. Plain Python, one rule per paragraph.

A `World` learns what every client sends and the answers that it gets. It never learns what the broker thinks. Whatever
contradicts docs/design.md#invariants is a broken promise:

1. A message with a receipt stays at the receipt's position for ever; a refused one is nowhere.
2. A transaction is visible completely or not at all. One that nobody asked to commit, or that was aborted, never is.
   Its acknowledgements count from its commit on, for ever. It acknowledges a single message once.
3. Nothing is delivered behind an entry of a transaction that is certainly still open.
4. A reported outcome of a transaction never changes; a deadline alone changes no reported outcome.
5. An ordered subscription first gets the messages of a key in the order of sending, and none of a segment before those
   of the segments that it replaced are acknowledged.

An answer that is on its way when the broker dies leaves both outcomes possible. `settled` says that nothing is on its
way, so that answers count: several connections have no common order.
"""

from dataclasses import dataclass, field
from enum import Enum


class Fate(Enum):
    """What has happened to a transaction, as far as clients can know."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class BrokenPromise(AssertionError):
    """The broker broke a promise."""


@dataclass(frozen=True, order=True)
class Place:
    """The position of a stored message."""

    segment: str
    ledger: int
    entry: int


@dataclass(eq=False)
class Txn:
    """A transaction."""

    number: int
    open_until: float
    """Before that moment no time-out can have ended it."""
    asked: set[Fate] = field(default_factory=set)
    """The ends that clients asked for, answered or not."""
    fate: Fate = Fate.OPEN
    """OPEN: not known to be anything else."""

    def is_certainly_open(self, now: float) -> bool:
        return self.fate is Fate.OPEN and not self.asked and now < self.open_until

    def may_be(self, fate: Fate, now: float) -> bool:
        if self.fate is not Fate.OPEN:
            return self.fate is fate
        return fate in self.asked or (fate is Fate.ABORTED and now >= self.open_until)


@dataclass(eq=False)
class Message:
    """A message that was sent once. `number` is its value and its place in the order of sending."""

    number: int
    topic: str
    key: str
    txn: Txn | None
    is_late: bool
    """Its transaction was known to be over when it was sent."""
    place: Place | None = None
    """None while nobody was told that it is stored."""
    is_refused: bool = False


@dataclass(eq=False)
class Ack:
    """An acknowledgement of one message."""

    txn: Txn | None
    is_late: bool
    """Its transaction was known to be over when it was asked for."""
    is_answered: bool = False
    is_settled: bool = False


@dataclass(eq=False)
class Subscription:
    """One subscription of a topic, from the topic's beginning on."""

    topic: str
    name: str
    is_ordered: bool
    newest: dict[str, int] = field(default_factory=dict)
    """By key, the message that was delivered last for the first time."""
    seen: set[int] = field(default_factory=set)
    acks: dict[int, list[Ack]] = field(default_factory=dict)

    def is_acknowledged(self, number: int) -> bool:
        """Return whether it is acknowledged certainly and permanently."""
        acks = self.acks.get(number, ())
        return any(ack.is_settled and (ack.txn is None or ack.txn.fate is Fate.COMMITTED) for ack in acks)

    def may_be_acknowledged(self, number: int) -> bool:
        return any(
            ack.txn is None or ack.txn.fate is Fate.COMMITTED or (ack.txn.fate is Fate.OPEN and ack.txn.asked)
            for ack in self.acks.get(number, ())
        )


class World:
    """Everything that clients know."""

    def __init__(self) -> None:
        self.txns: list[Txn] = []
        self.messages: dict[int, Message] = {}
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.readable: dict[str, tuple[int, int]] = {}
        self.places: dict[Place, int] = {}

    # What clients do

    def begun(self, open_until: float) -> Txn:
        txn = Txn(len(self.txns), open_until)
        self.txns.append(txn)
        return txn

    def sent(self, topic: str, key: str, txn: Txn | None) -> Message:
        late = txn is not None and txn.fate is not Fate.OPEN
        message = Message(len(self.messages), topic, key, txn, late)
        self.messages[message.number] = message
        return message

    def subscribed(self, topic: str, name: str, *, is_ordered: bool) -> Subscription:
        return self.subscriptions.setdefault((topic, name), Subscription(topic, name, is_ordered))

    def asked_to_acknowledge(self, subscription: Subscription, numbers: list[int], txn: Txn | None) -> list[Ack]:
        acks = []
        for number in numbers:
            acks.append(Ack(txn, is_late=txn is not None and txn.fate is not Fate.OPEN))
            subscription.acks.setdefault(number, []).append(acks[-1])
        return acks

    # What they are told

    def stored(self, message: Message, place: Place) -> None:
        """Note a receipt, or the message itself."""
        if message.is_refused:
            raise BrokenPromise(f"message {message.number} was refused and is stored all the same")
        if message.is_late:
            raise BrokenPromise(f"message {message.number} was taken for transaction {message.txn} after its end")
        if message.place not in (None, place):
            raise BrokenPromise(f"message {message.number} was at {message.place} and is at {place}")
        if self.places.setdefault(place, message.number) != message.number:
            raise BrokenPromise(f"messages {message.number} and {self.places[place]} are both at {place}")
        message.place = place

    def refused(self, message: Message) -> None:
        if message.place is not None:
            raise BrokenPromise(f"message {message.number} is stored and was refused")
        message.is_refused = True

    def ended(self, txn: Txn, fate: Fate, now: float) -> None:
        """Note that a client learned or saw how the transaction ended."""
        if not txn.may_be(fate, now):
            raise BrokenPromise(f"transaction {txn.number} is {txn.fate.value} and cannot be {fate.value}: {txn}")
        txn.fate = fate

    def acknowledged(self, acks: list[Ack]) -> None:
        for ack in acks:
            if ack.is_late:
                raise BrokenPromise(f"an acknowledgement was taken for transaction {ack.txn} after its end")
            ack.is_answered = True

    def acknowledged_twice(self, first: list[Ack], second: list[Ack]) -> None:
        """Note that two commands for the same single message in one transaction were both accepted."""
        if any(ack.is_answered for ack in first):
            raise BrokenPromise(f"a message was acknowledged twice in transaction {second[0].txn}")
        self.acknowledged(second)

    def not_acknowledged(self, subscription: Subscription, acks: list[Ack]) -> None:
        """Note a refusal: the acknowledgement does not count."""
        for known in subscription.acks.values():
            known[:] = [ack for ack in known if ack not in acks]

    def delivered(self, subscription: Subscription, number: int, place: Place, now: float) -> None:
        message = self.messages.get(number)
        if message is None or message.topic != subscription.topic:
            raise BrokenPromise(f"message {number} was never sent to {subscription.topic}")
        self.stored(message, place)
        if message.txn is not None:
            # Seen is committed; that nobody asked for it, or that it was aborted, is refused there.
            self.ended(message.txn, Fate.COMMITTED, now)
        for other in self.messages.values():
            held = other.place
            if other.txn is None or held is None or held.segment != place.segment or held > place:
                continue
            if other.txn.is_certainly_open(now):
                raise BrokenPromise(
                    f"message {number} was delivered, behind message {other.number} of transaction "
                    f"{other.txn.number}, which is open"
                )
        if subscription.is_acknowledged(number):
            raise BrokenPromise(f"message {number} was acknowledged and came again on {subscription.name}")
        for ack in subscription.acks.get(number, ()):
            if ack.is_settled and ack.txn is not None and ack.txn.is_certainly_open(now):
                raise BrokenPromise(
                    f"message {number} came again on {subscription.name}, although it is acknowledged in transaction "
                    f"{ack.txn.number}, which is open"
                )
        if subscription.is_ordered:
            self._check_drained_before(subscription, message, place)
        if number not in subscription.seen:
            if subscription.is_ordered and subscription.newest.get(message.key, -1) > number:
                raise BrokenPromise(
                    f"message {number} of key {message.key} came on {subscription.name} after message "
                    f"{subscription.newest[message.key]}"
                )
            subscription.newest[message.key] = number
            subscription.seen.add(number)

    def _check_drained_before(self, subscription: Subscription, message: Message, place: Place) -> None:
        """Check that earlier messages of the key, on other segments, are on segments that this one replaces."""
        for earlier in self.messages.values():
            if (earlier.topic, earlier.key) != (message.topic, message.key) or earlier.number >= message.number:
                continue
            if earlier.place is None or earlier.place.segment == place.segment:
                continue
            is_visible = earlier.txn is None or earlier.txn.fate is Fate.COMMITTED
            if is_visible and not subscription.may_be_acknowledged(earlier.number):
                raise BrokenPromise(
                    f"message {message.number} came on {subscription.name} from {place.segment} before message "
                    f"{earlier.number} of its key was acknowledged on {earlier.place.segment}"
                )

    def readable_stands_at(self, segment: str, position: tuple[int, int]) -> None:
        """Note how far a segment's owner lets readers go; it never goes back, whoever owns it."""
        if position[1] < 0:
            # Before the first entry of a ledger, which an owner that finds the ledger empty removes.
            return
        before = self.readable.get(segment)
        if before is not None and position < before:
            raise BrokenPromise(f"{segment} was readable up to {before} and is now up to {position}")
        self.readable[segment] = position

    def settled(self) -> None:
        """Note that nothing is on its way, so that answers count."""
        for subscription in self.subscriptions.values():
            for acks in subscription.acks.values():
                for ack in acks:
                    ack.is_settled = ack.is_answered

    # What must be found in the end

    def visible(self, topic: str) -> set[int]:
        """Return the messages that every subscription must get, once no transaction is open any more."""
        return {
            message.number
            for message in self.messages.values()
            if message.topic == topic
            and message.place is not None
            and (message.txn is None or message.txn.fate is Fate.COMMITTED)
        }

    def check_nothing_waits(self, subscription: Subscription) -> None:
        """Check a subscription whose consumers acknowledged everything and were connected the whole time."""
        waiting = {
            number for number in self.visible(subscription.topic) if not subscription.may_be_acknowledged(number)
        }
        if waiting:
            raise BrokenPromise(f"{subscription.name} of {subscription.topic} does not send {sorted(waiting)}")

    def check_drained(self, subscription: Subscription, came: list[int]) -> None:
        """Check a subscription after a restart: new consumers got these messages and acknowledged everything."""
        visible = self.visible(subscription.topic)
        missing = {number for number in visible - set(came) if not subscription.may_be_acknowledged(number)}
        if missing:
            raise BrokenPromise(f"{subscription.name} of {subscription.topic} lost messages {sorted(missing)}")
        if len(came) != len(set(came)):
            raise BrokenPromise(f"{subscription.name} of {subscription.topic} got messages twice: {came}")
        unseen = visible - subscription.seen
        if unseen:
            raise BrokenPromise(f"{subscription.name} of {subscription.topic} never saw messages {sorted(unseen)}")
