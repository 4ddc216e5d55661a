"""How keys and records are laid out in etcd.

    <root>/f                    the format of all this, `1`
    <root>/n                    the last number of a sequential put, 20 digits
    <root>/r<key>               a record: its value, partition key and index entries (stored.proto)
    <root>/s<lease>             a session: exists while its lease does, 16 hexadecimal digits
    <root>/t                    the tip: put by every change set, so its revision is that of the last one
    <root>/w<lease>/<slot>      how many change sets a writer made through a slot (see writer.py)

Every process follows everything from `n` to `t` through one watch. A record's key is the user's key in UTF-8 behind a
prefix, so etcd's bytewise order is the order of the keys (M11). Its mod_revision is its version, because etcd's
revision rises with every transaction and is never reused (M3).

Index entries are in the record, not under keys of their own. So they change with the record in one step, even at the
end of a lease or in the deletion of a range (M8). An operation stays one of etcd's 128 operations. Every process keeps
the index in its image. With keys of their own, deleting a range would need an operation for each entry in it, and a
condition on all of it.

Pure: no IO, no waiting.
"""

from typing import Final, NamedTuple

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.generated.stored_pb2 import StoredIndexEntry, StoredRecord
from storage.metadata.store import SEQUENCE_DIGITS, IndexEntry, Record

FORMAT: Final = b"1"

RECORD: Final = ord("r")
SESSION: Final = ord("s")
COUNTER: Final = ord("n")


class Span(NamedTuple):
    """A range of etcd's keys, [start, end)."""

    start: bytes
    end: bytes


class Keys:
    """The keys of one cluster below its root. Other clusters in the same etcd have other roots."""

    def __init__(self, root: str) -> None:
        """`root` is not empty and does not end in a slash."""
        assert root, "a cluster has a root"
        assert not root.endswith("/"), "the slash is added here"
        self._root = f"{root}/".encode()
        self._section = len(self._root)
        self._record = self._root + b"r"
        self.format = self._root + b"f"
        self.counter = self._root + b"n"
        self.tip = self._root + b"t"
        self.followed = Span(self._root + b"n", self._root + b"u")
        """What every process follows."""
        self.sessions = Span(self._root + b"s", self._root + b"t")

    def record(self, key: str) -> bytes:
        """The etcd key of a record."""
        return self._record + key.encode()

    def records(self, start: str, end: str) -> Span:
        """The etcd keys of the records of [start, end)."""
        return Span(self.record(start), self.record(end))

    def session(self, lease: int) -> bytes:
        """The key that shows that a session is open."""
        return b"%ss%016x" % (self._root, lease)

    def slot(self, lease: int, number: int) -> bytes:
        """The key of a writer's slot."""
        return b"%sw%016x/%d" % (self._root, lease, number)

    def section_of(self, key: bytes) -> int:
        """The section of a followed key."""
        return key[self._section]

    def lease_of(self, session_key: bytes) -> int:
        """Undo `session`."""
        return int(session_key[self._section + 1 :], 16)

    def record_key(self, key: bytes) -> str:
        """Undo `record`."""
        return key[self._section + 1 :].decode()

    def decode(self, stored: pb.KeyValue) -> Record:
        """A record as readers of the store see it."""
        content = StoredRecord.FromString(stored.value)
        indexes = tuple(IndexEntry(entry.name, entry.key) for entry in content.indexes)
        partition_key = content.partition_key if content.HasField("partition_key") else None
        return Record(
            self.record_key(stored.key),
            content.value,
            stored.mod_revision,
            indexes,
            partition_key,
            stored.lease or None,
        )


def encode(value: bytes, indexes: tuple[IndexEntry, ...], partition_key: str | None) -> bytes:
    """The etcd value of a record's content."""
    entries = [StoredIndexEntry(name=name, key=key) for name, key in dict.fromkeys(indexes)]
    return StoredRecord(value=value, indexes=entries, partition_key=partition_key).SerializeToString()


def encode_number(number: int) -> bytes:
    """The counter's value."""
    return b"%0*d" % (SEQUENCE_DIGITS, number)
