"""What a copier makes of a record, and what a copy says about itself. Pure.

A copy's value names the place of its original, and has the original's value turned round. A copy that its copier is
going to abort says so, and must never be shown.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.support.history import Place
from tests.support.row_copies import Copy

KEPT: Final = b"kept"
DOOMED: Final = b"doomed"


class Record(NamedTuple):
    """A record, as any client received it."""

    partition: int
    offset: int
    key: bytes
    value: bytes

    @property
    def place(self) -> Place:
        """Where it is. Partitions stand for segments and ledgers, because offsets are unique in them alone."""
        return place_of(self.partition, self.offset)


def place_of(partition: int, offset: int) -> Place:
    """Return the place of a record, as histories know places."""
    return Place(partition, partition, offset, 0)


def copy_of(record: Record, *, is_doomed: bool) -> bytes:
    """Return the value of the record's copy."""
    return b"%s %d %d %s" % (DOOMED if is_doomed else KEPT, record.partition, record.offset, record.value[::-1])


def copies_in(records: Iterable[Record], complaints: list[str]) -> Iterator[Copy]:
    """Return the copies that these records are. Complain about doomed ones, and about what nobody made."""
    for record in records:
        where = f"partition {record.partition} at {record.offset}"
        fate, *rest = record.value.split(b" ", 3)
        if len(rest) != 3 or fate not in {KEPT, DOOMED}:
            complaints.append(f"nobody made {record.value[:40]!r} in {where}")
            continue
        if fate == DOOMED:
            complaints.append(f"{record.value[:40]!r} is shown in {where}, and its copier aborted it")
        partition, offset, value = rest
        yield Copy(where, place_of(int(partition), int(offset)), record.key.decode(), value[::-1])
