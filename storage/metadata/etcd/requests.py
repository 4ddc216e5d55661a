"""A change set as one etcd transaction, and what etcd's answer means.

    if    every condition of the change set holds, its writer's slot was used exactly `uses` times,
          and (sequential puts) the counter is as last seen and the keys to be made are absent
    then  put the slot, put the tip, put the counter, and the change set's own operations
    else  read the slot, the tip, the counter, and the version of every key with a condition

The slot makes it safe to send the same request again after a lost answer: at most one of the copies finds the slot as
it was, and the others see from it that it was done. The tip is what a read barrier asks for. A change set that only
deletes may turn out to change nothing and must then take no revision, so its deletions and its tip stand in an inner
transaction, made unless everything it would delete is absent.

Pure: no IO, no waiting.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
"""etcd's default limit for each of a transaction's three lists."""

REQUEST_BYTES_MAX: Final = 1_500_000
"""etcd's default limit is 1.5 MiB, its own envelope included."""


_BURNT: Final = b"burnt"


class Slot(NamedTuple):
    """Where a writer counts its change sets, one at a time."""

    key: bytes
    lease: int
    uses: int
    """Change sets made through it."""


class Counter(NamedTuple):
    """Of sequential puts."""

    last: int
    """The last number given out."""
    revision: int
    """Of the counter's key; 0 when there is none yet."""


class Applied(NamedTuple):
    """The change set was made."""

    committed: Committed
    counter: Counter | None
    """As it is now, if the change set had sequential puts."""


class AppliedEarlier(NamedTuple):
    """This request found that an earlier copy of itself was made."""

    committed: Committed


class CounterMoved(NamedTuple):
    """Another process took numbers, or somebody wrote the next key by its name: try again with this."""

    counter: Counter


class SlotLost(NamedTuple):
    """The slot is not as its writer left it: its lease has ended. Earlier copies may or may not have been made."""


Answer = Applied | AppliedEarlier | CounterMoved | SlotLost | Conflict


@dataclass(frozen=True, slots=True)
class _Condition:
    key: str
    expected: int


class ChangeSet:
    """Operations that passed `measure`, ready to become requests."""

    def __init__(self, ops: Sequence[Op], keys: Keys) -> None:
        """Set up.

        Raises:
            ChangeSetTooLarge: more operations or conditions than an etcd transaction takes.
        """
        self._ops = tuple(ops)
        self._keys = keys
        self._conditions = [
            _Condition(op.key, op.expected)
            for op in ops
            if isinstance(op, Put | Delete | Check) and op.expected is not None
        ]
        self._doomed = [
            _span_of(op, keys)
            for op in ops
            if isinstance(op, Delete) or (isinstance(op, DeleteRange) and op.start < op.end)
        ]
        puts = sum(isinstance(op, Put) for op in ops)
        self.sequential = sum(isinstance(op, PutSequential) for op in ops)
        """How many numbers it takes."""
        self._only_deletes = not puts and not self.sequential
        self.only_reads = self._only_deletes and not self._doomed
        """It has conditions at most."""
        with_counter = 1 if self.sequential else 0
        lists = {
            "conditions": len(self._conditions) + 1 + with_counter + self.sequential,
            "operations": puts + self.sequential + len(self._doomed) + 2 + with_counter,
            "conditions to be looked at": len(self._conditions) + 2 + with_counter,
        }
        for name, length in lists.items():
            if length > ETCD_OPERATIONS_MAX:
                raise ChangeSetTooLarge(
                    f"a change set of {len(self._ops)} operations needs {length} {name} of etcd, "
                    f"which takes {ETCD_OPERATIONS_MAX}"
                )

    def request(self, slot: Slot | None, counter: Counter) -> pb.TxnRequest:
        """The transaction; None for the slot if it only reads.

        Raises:
            ChangeSetTooLarge: more bytes than etcd takes.
        """
        request = pb.TxnRequest(
            compare=[_has_version(self._keys.record(key), expected) for key, expected in self._expectations()],
            failure=[
                _read(self._keys.tip),
                *(_read(self._keys.record(condition.key)) for condition in self._conditions),
            ],
        )
        if slot is None:
            request.success.append(_read(self._keys.tip))
            return request
        request.compare.append(_was_put(slot.key, slot.uses))
        request.failure.append(_read(slot.key, keys_only=False))
        # What an earlier copy of the request assigned can be told from this.
        request.success.append(_put(slot.key, b"%d" % counter.last, slot.lease))
        if self._only_deletes:
            inner = pb.TxnRequest(
                compare=[_is_absent(span) for span in self._doomed],
                failure=[*map(_delete, self._doomed), _put(self._keys.tip, b"")],
            )
            request.success.extend([_read(self._keys.tip), pb.RequestOp(request_txn=inner)])
        else:
            request.success.append(_put(self._keys.tip, b""))
            request.success.extend(map(_delete, self._doomed))
            self._add_puts(request, counter)
        if request.ByteSize() > REQUEST_BYTES_MAX:
            raise ChangeSetTooLarge(
                f"a change set of {request.ByteSize()} bytes is above the limit of {REQUEST_BYTES_MAX} on etcd"
            )
        return request

    def judge(self, response: pb.TxnResponse, slot: Slot | None, counter: Counter) -> Answer:
        """What the answer to `request(slot, counter)` says."""
        if response.succeeded:
            return Applied(
                Committed(self._revision_of(response, slot), self._written(counter.last)),
                self._advanced(response, counter),
            )
        answers = [answer.response_range.kvs for answer in response.responses]
        tip = _version_of(answers[0])
        if slot is not None:
            found = answers[1 + len(self._conditions)]
            uses = found[0].version if found else 0
            if uses == slot.uses + 1:
                # If it changed nothing its revision is the tip's, which is lower than the slot's.
                revision = min(found[0].mod_revision, tip)
                return AppliedEarlier(Committed(revision, self._written(int(found[0].value))))
            if uses != slot.uses:
                return SlotLost()
        for condition, found in zip(self._conditions, answers[1:], strict=False):
            actual = _version_of(found)
            if actual != condition.expected:
                return Conflict(condition.key, condition.expected, actual)
        assert self.sequential, "some condition does not hold"
        found = answers[-1]
        moved = Counter(int(found[0].value), found[0].mod_revision) if found else Counter(0, 0)
        # Not moved: the next key was written by its name, so the number is passed over.
        return CounterMoved(Counter(counter.last + 1, moved.revision) if moved.revision == counter.revision else moved)

    def _expectations(self) -> list[tuple[str, int]]:
        return [(condition.key, condition.expected) for condition in self._conditions]

    def _add_puts(self, request: pb.TxnRequest, counter: Counter) -> None:
        assigned, last = self._assign(counter.last)
        for op, key in zip(self._ops, assigned, strict=True):
            if isinstance(op, Put):
                lease = 0 if op.session is None else op.session.id
                content = encode(op.value, op.indexes, op.partition_key)
                request.success.append(_put(self._keys.record(op.key), content, lease))
            elif isinstance(op, PutSequential):
                assert key is not None, "a sequential put has a key"
                content = encode(op.value, op.indexes, op.partition_key)
                request.success.append(_put(self._keys.record(key), content))
                request.compare.append(_has_version(self._keys.record(key), 0))
        if self.sequential:
            request.success.append(_put(self._keys.counter, encode_number(last)))
            request.compare.append(_has_version(self._keys.counter, counter.revision))
            request.failure.append(_read(self._keys.counter, keys_only=False))

    def _assign(self, last: int) -> tuple[list[str | None], int]:
        """Per operation the key it writes, and the last number used."""
        named = {op.key for op in self._ops if isinstance(op, Put)} if self.sequential else set()
        assigned: list[str | None] = []
        for op in self._ops:
            key: str | None = None
            if isinstance(op, Put):
                key = op.key
            elif isinstance(op, PutSequential):
                last += 1
                while (key := f"{op.prefix}-{last:0{SEQUENCE_DIGITS}}") in named:
                    last += 1
            assigned.append(key)
        return assigned, last

    def _written(self, last: int) -> tuple[str | None, ...]:
        return tuple(self._assign(last)[0])

    def _advanced(self, response: pb.TxnResponse, counter: Counter) -> Counter | None:
        return Counter(self._assign(counter.last)[1], response.header.revision) if self.sequential else None

    def _revision_of(self, response: pb.TxnResponse, slot: Slot | None) -> int:
        """Of a transaction that was made: its own, or the tip's if it changed nothing."""
        if slot is None:
            return _version_of(response.responses[0].response_range.kvs)
        if self._only_deletes and response.responses[2].response_txn.succeeded:
            return _version_of(response.responses[1].response_range.kvs)
        return response.header.revision


def burn(slot: Slot) -> pb.TxnRequest:
    """Use the slot for nothing, so that no copy of what was sent through it can be made any more.

    See `is_burnt`.
    """
    return pb.TxnRequest(
        compare=[_was_put(slot.key, slot.uses)],
        success=[_put(slot.key, _BURNT, slot.lease)],
        failure=[_read(slot.key, keys_only=False)],
    )


def is_burnt(response: pb.TxnResponse) -> bool:
    """Whether the answer to `burn` says so; if not, a copy of what was sent was made after all."""
    if response.succeeded:
        return True
    # An earlier copy of the burning may have been first.
    return any(found.value == _BURNT for found in response.responses[0].response_range.kvs)


def _span_of(op: Delete | DeleteRange, keys: Keys) -> Span:
    return Span(keys.record(op.key), b"") if isinstance(op, Delete) else keys.records(op.start, op.end)


def _has_version(key: bytes, expected: int) -> pb.Compare:
    # An absent key compares as one with revision 0, which is ABSENT.
    return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=expected)


def _was_put(key: bytes, times: int) -> pb.Compare:
    return pb.Compare(key=key, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=times)


def _is_absent(span: Span) -> pb.Compare:
    return pb.Compare(key=span.start, range_end=span.end, target=pb.Compare.VERSION, result=pb.Compare.EQUAL, version=0)


def _read(key: bytes, *, keys_only: bool = True) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key, keys_only=keys_only))


def _put(key: bytes, value: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def _delete(span: Span) -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=span.start, range_end=span.end))


def _version_of(found: Sequence[pb.KeyValue]) -> int:
    return found[0].mod_revision if found else 0
