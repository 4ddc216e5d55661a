"""Records what a pipeline copied from one topic to another, and checks that each message counts once.

    copies = Copies()
    piece = copies.begin((0, 7), [message.value, ...])
    value = piece.copy_of(message.value)      # to be sent, in the transaction that acknowledges the message
    piece.fate = Fate.COMMITTED
    copies.settle(piece)                      # when its commit is answered
    complaints = copies.judge(history, inputs, outputs, is_ordered=True)

Each piece is one transaction. `history.History` checks the source topic. This module checks that every readable message
of the source has exactly one readable copy in the target, made in a transaction that was not aborted. If an
acknowledgement was lost, the message has two copies. If it was acknowledged but its copy was lost, it has none. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.support.history import COMPLAINTS_MAX, Fate, History, Read

END: Final = b"end"
"""The prefix of the values that mark the end of a topic. They are not copies."""


@dataclass(eq=False, slots=True)
class Piece:
    """One transaction of a pipeline."""

    number: int
    transaction_id: tuple[int, int]
    inputs: list[bytes]
    """The names of the messages that it takes."""
    fate: Fate = Fate.OPEN

    def copy_of(self, value: bytes) -> bytes:
        """Return the copy's value for a message with this value."""
        return b"%d:%s" % (self.number, name_of(value))

    def __str__(self) -> str:
        most, least = self.transaction_id
        return f"piece {self.number} (id {most},{least:#x}, {self.fate.value})"


@dataclass(slots=True)
class Copies:
    """Everything that one pipeline did."""

    pieces: list[Piece] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    settled: dict[bytes, int] = field(default_factory=dict)
    """The names of messages whose piece is known to be committed, and how many pieces were by then."""
    settled_pieces: int = 0

    def begin(self, transaction_id: tuple[int, int], values: Iterable[bytes]) -> Piece:
        """Record a new piece, which takes the messages with these values."""
        piece = Piece(len(self.pieces), transaction_id, [name_of(value) for value in values])
        self.pieces.append(piece)
        return piece

    def received(self, value: bytes, *, settled_before: int) -> None:
        """Record a received message. It must not be in a piece that was settled before the consumer connected."""
        settled = self.settled.get(name_of(value))
        if settled is not None and settled <= settled_before:
            self.complaints.append(
                f"{name_of(value)!r} was redelivered to a consumer that connected after its piece's commit"
            )

    def settle(self, piece: Piece) -> None:
        """Record that the piece's commit was acknowledged."""
        self.settled_pieces += 1
        for name in piece.inputs:
            self.settled.setdefault(name, self.settled_pieces)

    def missing(self, values: Iterable[bytes]) -> set[bytes]:
        """Return those names that are in no piece known to be committed."""
        return {name_of(value) for value in values} - self.settled.keys()

    def expected(self) -> set[bytes]:
        """Return the values of all copies that must be visible."""
        return {piece.copy_of(name) for piece in self.pieces if piece.fate is Fate.COMMITTED for name in piece.inputs}

    def judge(
        self, history: History, inputs: Iterable[Read], outputs: Sequence[Read], *, is_ordered: bool
    ) -> list[str]:
        """Return complaints, if `inputs` is everything readable in the source and `outputs` in the target.

        `is_ordered`: the copies of a key's messages must be in the order of the messages.
        """
        complaints: list[str] = []
        found: list[tuple[Piece, bytes, Read]] = []
        for read in outputs:
            number, _, name = read.value.partition(b":")
            if read.value.startswith(END):
                continue
            if not number.isdigit() or int(number) >= len(self.pieces):
                complaints.append(f"nobody made {read.value[:40]!r}, read from {read.place}")
            else:
                found.append((self.pieces[int(number)], name, read))
        visible = {name_of(read.value) for read in inputs}
        complaints += _not_once(history, visible, found)
        complaints += _against_their_fate(self.pieces, found)
        if is_ordered:
            complaints += _out_of_order(history, found)
        return complaints[:COMPLAINTS_MAX]


def name_of(value: bytes) -> bytes:
    """Return a message's value without its padding."""
    transaction, _, rest = value.partition(b".")
    return transaction + b"." + rest.partition(b".")[0]


def _not_once(history: History, visible: set[bytes], found: Iterable[tuple[Piece, bytes, Read]]) -> Iterator[str]:
    first: dict[bytes, tuple[Piece, Read]] = {}
    for piece, name, read in found:
        known = first.setdefault(name, (piece, read))
        if known[1] is not read:
            yield f"{name!r} was copied by {known[0]} to {known[1].place} and again by {piece} to {read.place}"
    for name in sorted(first.keys() - visible):
        yield f"{name!r} was copied by {first[name][0]}, though it cannot be read"
    for name in sorted(visible - first.keys()):
        # The pipeline was not waited for where nobody knew what there would be to copy.
        if history.fate_of(name) is not Fate.UNKNOWN:
            yield f"{name!r} was never copied"


def _against_their_fate(pieces: Iterable[Piece], found: Iterable[tuple[Piece, bytes, Read]]) -> Iterator[str]:
    seen: dict[int, set[bytes]] = defaultdict(set)
    for piece, name, _read in found:
        seen[piece.number].add(name)
    for piece in pieces:
        if piece.fate in {Fate.OPEN, Fate.ABORTED}:
            wrong, what = seen[piece.number], "can be seen"
        elif piece.fate is Fate.UNKNOWN and not seen[piece.number]:
            continue
        else:
            wrong, what = set(piece.inputs) - seen[piece.number], "are missing"
        if wrong:
            yield f"{piece}: {len(wrong)} of its {len(piece.inputs)} copies {what}: {sorted(wrong)}"


def _out_of_order(history: History, found: Iterable[tuple[Piece, bytes, Read]]) -> Iterator[str]:
    last: dict[str, tuple[int, bytes]] = {}
    for piece, name, read in found:
        turn = history.turn_of(name)
        before = last.get(read.key)
        if turn is not None and before is not None and turn < before[0]:
            yield f"key {read.key}: the copy of {name!r} by {piece} stands behind that of {before[1]!r}, sent later"
        if turn is not None:
            last[read.key] = (turn, name)
