"""A record of a transactional load and its answers, and a check whether a later reading is consistent with it. Pure.

    history = History()
    transaction = history.begin((0, 1))
    sent = history.send(transaction, "key")
    sent.place = Place(...)                  # when its receipt has come
    transaction.fate = Fate.COMMITTED        # when its commit is answered
    complaints = history.judge(reads)

The load records each step before it requests it, and each answer when it arrives. So whatever happens in between, such
as a crash, the history knows what may and what must have happened. Every message's value names its transaction and its
number in that transaction. The check needs nothing else.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

COMPLAINTS_MAX: Final = 20
"""The most contradictions that are listed."""


class Fate(Enum):
    """What is known about a transaction's end, and so about what readers may see."""

    OPEN = "open"
    """No commit was ever requested: nothing may be visible."""
    ABORTED = "aborted"
    """The broker acknowledged the abort: nothing may be visible."""
    UNKNOWN = "unknown"
    """A commit was requested but not answered: everything may be visible, or nothing."""
    COMMITTED = "committed"
    """The broker acknowledged the commit: everything must be visible."""


class Place(NamedTuple):
    """A message's position. Ledgers are unique among all segments, and entries within their ledger."""

    segment_id: int
    ledger_id: int
    entry_id: int
    batch_index: int

    def __str__(self) -> str:
        return f"segment {self.segment_id} at {self.ledger_id}:{self.entry_id}[{self.batch_index}]"


@dataclass(eq=False, slots=True)
class Sent:
    """One message that was sent."""

    transaction: int
    number: int
    key: str
    turn: int
    """How many messages of this key were sent before it."""
    place: Place | None = None
    """The position in its receipt; None before the receipt."""

    def value(self, padding: int = 0) -> bytes:
        """Return the value to send: the message's names and some padding."""
        return b"%d.%d." % (self.transaction, self.number) + b"." * padding


class Read(NamedTuple):
    """One message that was read."""

    place: Place
    key: str
    value: bytes


@dataclass(eq=False, slots=True)
class Transaction:
    """One transaction, as its sender knows it."""

    number: int
    transaction_id: tuple[int, int]
    fate: Fate = Fate.OPEN
    sent: list[Sent] = field(default_factory=list)

    def __str__(self) -> str:
        most, least = self.transaction_id
        return f"transaction {self.number} (id {most},{least:#x}, {self.fate.value})"


@dataclass(slots=True)
class History:
    """Everything that was sent, in order."""

    transactions: list[Transaction] = field(default_factory=list)
    _turns: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def begin(self, transaction_id: tuple[int, int]) -> Transaction:
        """Record that a transaction was begun."""
        transaction = Transaction(len(self.transactions), transaction_id)
        self.transactions.append(transaction)
        return transaction

    def send(self, transaction: Transaction, key: str) -> Sent:
        """Record that a message is about to be sent, after all earlier messages of this key."""
        sent = Sent(transaction.number, len(transaction.sent), key, self._turns[key])
        self._turns[key] += 1
        transaction.sent.append(sent)
        return sent

    def count(self, fate: Fate) -> int:
        """Count the transactions with this fate."""
        return sum(transaction.fate is fate for transaction in self.transactions)

    def fate_of(self, value: bytes) -> Fate | None:
        """Return the fate of the transaction of the message with this value; None if it was never sent."""
        sent = self._find(value)
        return None if sent is None else self.transactions[sent.transaction].fate

    def turn_of(self, value: bytes) -> int | None:
        """Count the messages of its key that were sent before the one with this value; None if it was never sent."""
        sent = self._find(value)
        return None if sent is None else sent.turn

    def committed(self) -> set[bytes]:
        """Return the values, without padding, of all messages whose commit was acknowledged."""
        return {
            sent.value()
            for transaction in self.transactions
            if transaction.fate is Fate.COMMITTED
            for sent in transaction.sent
        }

    def judge(self, reads: Sequence[Read]) -> list[str]:
        """Return complaints about `reads`, which must be everything that is readable, read once, parents first."""
        complaints = list(self._reused_positions())
        found: list[tuple[Sent, Read]] = []
        for read in reads:
            sent = self._find(read.value)
            if sent is None:
                complaints.append(f"nobody sent {read.value[:40]!r}, read from {read.place}")
            else:
                found.append((sent, read))
        complaints += [*_unlike_sent(found), *_more_than_once(found), *_out_of_order(found)]
        seen: dict[int, set[int]] = defaultdict(set)
        for sent, _read in found:
            seen[sent.transaction].add(sent.number)
        for transaction in self.transactions:
            complaints += _wrongly_visible(transaction, seen[transaction.number])
        return complaints[:COMPLAINTS_MAX]

    def judge_again(self, reads: Sequence[Read]) -> list[str]:
        """Return complaints for a consumer that may get messages repeatedly. The first delivery counts."""
        first: dict[bytes, Read] = {}
        for read in reads:
            first.setdefault(read.value, read)
        return self.judge(list(first.values()))

    def _find(self, value: bytes) -> Sent | None:
        transaction, _, rest = value.partition(b".")
        number, _, _padding = rest.partition(b".")
        if not (transaction.isdigit() and number.isdigit()) or int(transaction) >= len(self.transactions):
            return None
        sent = self.transactions[int(transaction)].sent
        return sent[int(number)] if int(number) < len(sent) else None

    def _reused_positions(self) -> Iterator[str]:
        taken: dict[Place, Sent] = {}
        owner: dict[tuple[int, int], Transaction] = {}
        for transaction in self.transactions:
            for sent in transaction.sent:
                if sent.place is None:
                    continue
                other = taken.setdefault(sent.place, sent)
                if other is not sent:
                    yield f"{_named(other)} and {_named(sent)} were both acknowledged in {sent.place}"
                # An entry is one frame, and a frame belongs to one transaction.
                entry = sent.place.ledger_id, sent.place.entry_id
                holder = owner.setdefault(entry, transaction)
                if holder is not transaction:
                    yield f"{holder} and {transaction} were both given entry {entry[0]}:{entry[1]}"


def _unlike_sent(found: Iterable[tuple[Sent, Read]]) -> Iterator[str]:
    for sent, read in found:
        if sent.key != read.key:
            yield f"{_named(sent)} was sent with key {sent.key} and read with key {read.key}"
        if sent.place is not None and sent.place != read.place:
            yield f"{_named(sent)} was acknowledged in {sent.place} and read from {read.place}"


def _more_than_once(found: Iterable[tuple[Sent, Read]]) -> Iterator[str]:
    first: dict[Sent, Read] = {}
    for sent, read in found:
        earlier = first.setdefault(sent, read)
        if earlier is not read:
            yield f"{_named(sent)} was read from {earlier.place} and again from {read.place}"


def _out_of_order(found: Iterable[tuple[Sent, Read]]) -> Iterator[str]:
    last: dict[str, Sent] = {}
    for sent, read in found:
        before = last.get(sent.key)
        if before is not None and before.turn > sent.turn:
            yield f"key {sent.key}: {_named(sent)} from {read.place} was read after {_named(before)}, sent later"
        last[sent.key] = sent


def _wrongly_visible(transaction: Transaction, seen: set[int]) -> Iterator[str]:
    if transaction.fate in {Fate.OPEN, Fate.ABORTED}:
        wrong, what = seen, "can be seen"
    else:
        wrong, what = {sent.number for sent in transaction.sent} - seen, "are missing"
        if transaction.fate is Fate.UNKNOWN and not seen:
            return
    if wrong:
        places = "; ".join(f"{number} in {transaction.sent[number].place}" for number in sorted(wrong))
        yield f"{transaction}: {len(wrong)} of its {len(transaction.sent)} messages {what}: {places}"


def _named(sent: Sent) -> str:
    return f"message {sent.transaction}.{sent.number}"
