"""Change sets as one etcd transaction, and the meaning of etcd's answer.

    if    the writer's slot was put exactly `uses` times, and (sequential puts) the counter is as last seen
    then  put the slot, put the tip, put the counter, and for each change set:
              if    its conditions hold and the keys of its sequential puts are absent
              then  its operations
              else  put a marker, read the version of every key with a condition
    else  read the slot with its markers, and the counter

Change sets that wait at the same time share a transaction, as they share a sync in the embedded store. Each is judged
by itself, all or nothing, and they have the same revision. That equals one after another, because none of them writes
what another one writes or has a condition on (`ChangeSetBatch.add`).

The slot makes it safe to resend the same transaction after a lost answer. At most one of its copies finds the slot
unchanged. The others learn from the slot and the markers what was made. A read barrier asks for the tip.

Pure: no IO, no waiting.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.keys import Keys, Span, encode, encode_number
from storage.metadata.store import (
    SEQUENCE_DIGITS,
    ChangeSetTooLarge,
    Check,
    Committed,
    Conflict,
    Delete,
    DeleteRange,
    Op,
    Put,
    PutSequential,
)

ETCD_OPERATIONS_MAX: Final = 128
"""etcd's default limit, for the longest of a transaction's three lists plus the longest list inside it."""

_FRAME_OPERATIONS: Final = 3
"""The operations for slot, tip and counter."""

OPERATIONS_MAX: Final = ETCD_OPERATIONS_MAX - _FRAME_OPERATIONS - 1
"""The operations left for a change set that is alone in a transaction."""

REQUEST_BYTES_MAX: Final = 1_500_000
"""etcd's default limit is 1.5 MiB, its own envelope included."""

GROUP_MAX: Final = 64
"""Change sets in one transaction."""

GROUP_BYTES_MAX: Final = 256 * 1024
"""No change set joins a group of this size or more."""

_FRAME_BYTES: Final = 4096
"""More than the bytes that a transaction adds to its change sets."""


class Slot(NamedTuple):
    """A counter of the transactions of a writer, which makes one at a time."""

    key: bytes
    lease: int
    uses: int
    """Transactions made through it."""

    def marker(self, member: int) -> bytes:
        """The key that shows that this member of a group was not made."""
        return b"%s/%d" % (self.key, member)

    def uses_request(self) -> pb.RangeRequest:
        """Reads the slot with its markers."""
        return pb.RangeRequest(key=self.key, range_end=self.key + b"0")


class Counter(NamedTuple):
    """The counter of sequential puts."""

    last: int
    """The last assigned number."""
    revision: int
    """The revision of the counter's key; 0 if it does not exist yet."""


class TakenKey:
    """A key for a sequential put exists already. Try again with higher numbers."""


class Made(NamedTuple):
    """The transaction was made, with these outcomes of its change sets."""

    outcomes: "list[Committed | Conflict | TakenKey]"
    counter: Counter


class MadeEarlier(NamedTuple):
    """An earlier copy of the transaction was made, with these change sets; None for one that was not made."""

    outcomes: list[Committed | None]
    counter: Counter


class CounterMoved(NamedTuple):
    """Nothing was made, and no copy can be made any more, because another process took numbers.

    Try again with this counter.
    """

    counter: Counter


class SlotLost(NamedTuple):
    """The slot has changed, because its lease has ended. Earlier copies may or may not have been made."""


Answer = Made | MadeEarlier | CounterMoved | SlotLost


class ChangeSet:
    """Operations that passed `measure`, ready for a transaction."""

    def __init__(self, ops: Sequence[Op], keys: Keys) -> None:
        """Set up.

        Raises:
            ChangeSetTooLarge: it has more than an etcd transaction allows.
        """
        self._ops = tuple(ops)
        self._keys = keys
        self.conditions = [
            (op.key, op.expected)
            for op in self._ops
            if isinstance(op, Put | Delete | Check) and op.expected is not None
        ]
        self.points = {op.key for op in self._ops if isinstance(op, Put | Delete)}
        """Keys it writes."""
        self.ranges = [(op.start, op.end) for op in self._ops if isinstance(op, DeleteRange) and op.start < op.end]
        """Ranges it deletes."""
        self.sequences = [op.prefix for op in self._ops if isinstance(op, PutSequential)]
        """Prefixes of its new records."""
        # A sequential put skips these, as the contract says.
        self._named = {op.key for op in self._ops if isinstance(op, Put | Delete | Check)}
        changes = len(self.points) + len(self.ranges) + len(self.sequences)
        self.only_reads = not changes
        """Whether it has no operation besides conditions."""
        lists = {
            "operations": changes,
            "conditions": len(self.conditions) + len(self.sequences),
            "conditions and a marker": len(self.conditions) + 1,
        }
        self.width = max(lists.values())
        """The length of its longest list."""
        for name, length in lists.items():
            if length > OPERATIONS_MAX:
                raise ChangeSetTooLarge(
                    f"a change set of {len(self._ops)} operations has {length} {name}; etcd allows {OPERATIONS_MAX}"
                )

    def transaction(self, last: int, marker: pb.RequestOp | None) -> tuple[pb.TxnRequest, int]:
        """A transaction of this change set alone, with numbers above `last`. Also returns the last number used."""
        keys = self._keys
        request = pb.TxnRequest(
            compare=[_has_version(keys.record(key), expected) for key, expected in self.conditions],
            failure=[] if marker is None else [marker],
        )
        request.failure.extend(_read(keys.record(key)) for key, _ in self.conditions)
        assigned, last = self._assign(last)
        for op, key in zip(self._ops, assigned, strict=True):
            if isinstance(op, Delete):
                request.success.append(_delete(Span(keys.record(op.key), b"")))
            elif isinstance(op, DeleteRange):
                if op.start < op.end:
                    request.success.append(_delete(keys.records(op.start, op.end)))
            elif isinstance(op, Put | PutSequential):
                assert key is not None, "what puts has a key"
                lease = op.session.id if isinstance(op, Put) and op.session is not None else 0
                request.success.append(_put(keys.record(key), encode(op.value, op.indexes, op.partition_key), lease))
                if isinstance(op, PutSequential):
                    request.compare.append(_has_version(keys.record(key), 0))
        return request, last

    def outcome(self, response: pb.TxnResponse, revision: int, last: int) -> Committed | Conflict | TakenKey:
        """The meaning of the answer to `transaction(last, ...)`.

        `revision` is the store's revision if it changed anything.
        """
        if response.succeeded:
            return self.committed(revision, last)
        found = response.responses[len(response.responses) - len(self.conditions) :]
        for (key, expected), answer in zip(self.conditions, found, strict=True):
            kvs = answer.response_range.kvs
            actual = kvs[0].mod_revision if kvs else 0
            if actual != expected:
                return Conflict(key, expected, actual)
        assert self.sequences, "some condition does not hold"
        return TakenKey()

    def committed(self, revision: int, last: int) -> Committed:
        """The result if it was made with numbers above `last`."""
        return Committed(revision, tuple(self._assign(last)[0]))

    def last_after(self, last: int) -> int:
        """The last number that it uses above `last`."""
        return self._assign(last)[1]

    def _assign(self, last: int) -> tuple[list[str | None], int]:
        """For each operation the key that it writes, and the last number used."""
        assigned: list[str | None] = []
        for op in self._ops:
            key: str | None = None
            if isinstance(op, Put):
                key = op.key
            elif isinstance(op, PutSequential):
                last += 1
                while (key := f"{op.prefix}-{last:0{SEQUENCE_DIGITS}}") in self._named:
                    last += 1
            assigned.append(key)
        return assigned, last


class ChangeSetBatch:
    """Change sets in one transaction."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.members: list[ChangeSet] = []
        self._size = 0
        self._width = 0
        self._points: set[str] = set()
        self._conditioned: set[str] = set()
        self._ranges: list[tuple[str, str]] = []
        self._sequences: list[tuple[str, str]] = []

    def add(self, member: ChangeSet, size: int) -> bool:
        """Add it, if it may be in this transaction. `size` is an upper bound of its bytes."""
        conditioned = {key for key, _ in member.conditions}
        sequences = [_numbered(prefix) for prefix in member.sequences]
        if self.members:
            width = max(self._width, member.width)
            if _FRAME_OPERATIONS + len(self.members) + 1 + width > ETCD_OPERATIONS_MAX:
                return False
            if len(self.members) >= GROUP_MAX or self._size + size > GROUP_BYTES_MAX:
                return False
            if not member.points.isdisjoint(self._points) or not member.points.isdisjoint(self._conditioned):
                return False
            if not conditioned.isdisjoint(self._points):
                return False
            # Numbers differ, so two sequential puts never collide, whatever their prefixes.
            if (
                _meet(self._ranges, member.points, conditioned)
                or _meet(member.ranges, self._points, self._conditioned)
                or _meet(self._sequences, member.points, conditioned)
                or _meet(sequences, self._points, self._conditioned)
                or _overlap(self._ranges, [*member.ranges, *sequences])
                or _overlap(self._sequences, member.ranges)
            ):
                return False
        self.members.append(member)
        self._size += size
        self._width = max(self._width, member.width)
        self._points |= member.points
        self._conditioned |= conditioned
        self._ranges += member.ranges
        self._sequences += sequences
        return True

    def request(self, slot: Slot, counter: Counter) -> pb.TxnRequest:
        """The transaction.

        Raises:
            ChangeSetTooLarge: it has more bytes than etcd allows. Raised only if the first member alone is too large.
        """
        keys = self._keys
        request = pb.TxnRequest(
            compare=[pb.Compare(key=slot.key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=slot.uses)],
            success=[_put(slot.key, b"", slot.lease), _put(keys.tip, b"")],
            failure=[
                pb.RequestOp(request_range=slot.uses_request()),
                _read(keys.counter, keys_only=False),
            ],
        )
        last = counter.last
        for number, member in enumerate(self.members):
            inner, last = member.transaction(last, _put(slot.marker(number), b"", slot.lease))
            request.success.append(pb.RequestOp(request_txn=inner))
        if last > counter.last:
            request.compare.append(_has_version(keys.counter, counter.revision))
            request.success.append(_put(keys.counter, encode_number(last)))
        if request.ByteSize() > REQUEST_BYTES_MAX:
            raise ChangeSetTooLarge(
                f"a change set of {request.ByteSize()} bytes is above the limit of {REQUEST_BYTES_MAX} on etcd"
            )
        return request

    def judge(self, response: pb.TxnResponse, slot: Slot, counter: Counter) -> Answer:
        """The meaning of the answer to `request(slot, counter)`."""
        if response.succeeded:
            outcomes: list[Committed | Conflict | TakenKey] = []
            last = counter.last
            for member, answer in zip(self.members, response.responses[2:], strict=False):
                outcomes.append(member.outcome(answer.response_txn, response.header.revision, last))
                last = member.last_after(last)
            return Made(outcomes, _advanced(counter, last, response.header.revision))
        found = {stored.key: stored for stored in response.responses[0].response_range.kvs}
        uses = found[slot.key].version if slot.key in found else 0
        if uses == slot.uses + 1:
            return self._judge_earlier(found, slot, counter)
        if uses != slot.uses:
            return SlotLost()
        counters = response.responses[1].response_range.kvs
        return CounterMoved(Counter(int(counters[0].value), counters[0].mod_revision) if counters else Counter(0, 0))

    def judge_unmade(self, response: pb.RangeResponse, slot: Slot, counter: Counter) -> MadeEarlier | SlotLost | None:
        """The meaning of `slot.uses_request()` after etcd refused `request(slot, counter)`; None if it was not made."""
        found = {stored.key: stored for stored in response.kvs}
        uses = found[slot.key].version if slot.key in found else 0
        if uses == slot.uses + 1:
            return self._judge_earlier(found, slot, counter)
        return None if uses == slot.uses else SlotLost()

    def _judge_earlier(self, found: dict[bytes, pb.KeyValue], slot: Slot, counter: Counter) -> MadeEarlier:
        revision = found[slot.key].mod_revision
        outcomes: list[Committed | None] = []
        last = counter.last
        for number, member in enumerate(self.members):
            marker = found.get(slot.marker(number))
            was_made = marker is None or marker.mod_revision != revision
            outcomes.append(member.committed(revision, last) if was_made else None)
            last = member.last_after(last)
        return MadeEarlier(outcomes, _advanced(counter, last, revision))


def require_size(change_set: ChangeSet) -> None:
    """Refuse a change set that is too large for etcd even alone.

    Raises:
        ChangeSetTooLarge: it is.
    """
    size = change_set.transaction(0, None)[0].ByteSize() + _FRAME_BYTES
    if size > REQUEST_BYTES_MAX:
        raise ChangeSetTooLarge(f"a change set of {size} bytes is above the limit of {REQUEST_BYTES_MAX} on etcd")


def _advanced(counter: Counter, last: int, revision: int) -> Counter:
    return Counter(last, revision) if last > counter.last else counter


def _numbered(prefix: str) -> tuple[str, str]:
    """The range of every key that a sequential put may make."""
    return f"{prefix}-{'0' * SEQUENCE_DIGITS}", f"{prefix}-{'9' * SEQUENCE_DIGITS}\0"


def _meet(ranges: Iterable[tuple[str, str]], *sets: set[str]) -> bool:
    return any(start <= key < end for start, end in ranges for keys in sets for key in keys)


def _overlap(some: Sequence[tuple[str, str]], others: Sequence[tuple[str, str]]) -> bool:
    return any(start < other_end and other_start < end for start, end in some for other_start, other_end in others)


def _has_version(key: bytes, expected: int) -> pb.Compare:
    # An absent key compares as one with revision 0, which is ABSENT.
    return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=expected)


def _read(key: bytes, *, keys_only: bool = True) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=keys_only))


def _put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def _delete(span: Span) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=span.start, range_end=span.end))
