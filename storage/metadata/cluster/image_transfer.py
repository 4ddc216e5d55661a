"""The whole state on a link: in parts at the controller, and as a difference at the follower.

The controller reads a view of its image slice by slice, in key order, behind the state that is not records. So nothing
stops for longer than a slice, and the follower can compare each part with its own keys of that range. A follower that
holds nothing and is watched by nobody builds the image aside and adopts it in one step. Any other follower keeps what
differs. Its own image stays as it was until the last part, and then changes in one step for its readers. A watch sees
one change with what differs, so none of them breaks (C5, M14).

Pure: values in, values out.
"""

from collections.abc import Iterator
from typing import Final

from storage.metadata.cluster.messages import ImagePart, Place
from storage.metadata.image import Image
from storage.metadata.record_codec import CorruptRecord, decode, encode
from storage.metadata.records import (
    DataRecord,
    Deletion,
    FeatureLevel,
    LogRecord,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
)
from storage.metadata.slices import slices
from storage.metadata.snapshots import SLICE_BYTES_MAX, SLICE_RECORDS_MAX, View
from storage.metadata.steps import KEYS_AT_ONCE, Steps
from storage.metadata.store import Record

_END: Final = "\U0010ffff\U0010ffff"
"""Above every key."""


def image_parts(view: View, place: Place) -> Iterator[ImagePart]:
    """The view in parts, each read when it is asked for. The last part is empty and says that it is the last."""
    encoded = map(encode, _content(view))
    for records in slices(encoded, bytes_max=SLICE_BYTES_MAX, count_max=SLICE_RECORDS_MAX):
        yield ImagePart(place, False, b"".join(records))
    yield ImagePart(place, True, b"")


def _content(view: View) -> Iterator[DataRecord]:
    yield from view.head
    while records := view.next(SLICE_RECORDS_MAX):
        yield from records


class FirstImage:
    """Builds an image from its parts, for a follower that holds nothing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._image = Image()
        # The records come in key order, so keeping the order costs no more than adding them.
        self._image.settle()

    def take(self, part: bytes) -> Steps[None]:
        """Take the next part.

        Raises:
            CorruptRecord: it does not divide into known records.
            KeyError: a record is bound to a session that the image lacks.
        """
        yield from ()
        self._image.load(_data(part))

    def give_to(self, own: Image) -> None:
        """After the last part: let `own`, which holds nothing and is watched by nobody, adopt the state in one step."""
        self._image.revision = self._place.revision
        own.adopt(self._image)

    def finish(self, own: Image) -> Steps[list[DataRecord]]:
        """After the last part: the change set that makes `own`, which holds nothing, like the controller's image."""
        difference = Difference(self._place, own, head=self._image)
        yield from difference.compare_all(self._image)
        return (yield from difference.finish(own))


class Difference:
    """Compares the parts of an image with the follower's own one, which does not change meanwhile."""

    def __init__(self, place: Place, own: Image, *, head: Image | None = None) -> None:
        self._place = place
        self._own = own
        self._head = Image() if head is None else head
        """What the controller's image holds beside its records."""
        self._next = ""
        """Keys below this one were compared."""
        self._differing: list[DataRecord] = []

    def take(self, part: bytes) -> Steps[None]:
        """Take the next part. Raises as `FirstImage.take`."""
        there: dict[str, Record] = {}
        for record in _data(part):
            if isinstance(record, Record):
                there[record.key] = record
            else:
                self._head.load((record,))
        if there:
            # In key order, so the last one is the highest.
            yield from self._compare(there, next(reversed(there)) + "\0")

    def compare_all(self, image: Image) -> Steps[None]:
        """Compare all records of an image."""
        while records := image.scan(self._next, _END, SLICE_RECORDS_MAX):
            yield from self._compare({record.key: record for record in records}, records[-1].key + "\0")
            yield

    def finish(self, own: Image) -> Steps[list[DataRecord]]:
        """After the last part: the change set that makes `own` like the controller's image."""
        yield from self._compare({}, _END)
        head, revision = self._head, self._place.revision
        assert own is self._own, "it was compared with this one"
        own.outcomes = head.outcomes
        begun = [
            SessionStart(session, live.timeout_ms, live.owner, live.nonce)
            for session, live in head.sessions.items()
            if session not in own.sessions
        ]
        # Behind the records, because all that were bound to them have been replaced or deleted by then.
        ended = [SessionEnd(revision, session) for session in own.sessions if session not in head.sessions]
        change_set: list[DataRecord] = [*begun, *self._differing, *ended]
        if head.sequence > own.sequence:
            change_set.append(SequenceAdvance(revision, head.sequence))
        if head.taken_over is not None and head.taken_over != own.taken_over:
            change_set.append(head.taken_over)
        # The last one, because it leaves the image at the right revision.
        change_set.append(FeatureLevel(revision, head.feature_level))
        return change_set

    def _compare(self, there: dict[str, Record], end: str) -> Steps[None]:
        """Note what differs in the keys from the last compared one to `end`, excluded."""
        own = self._own.records
        for number, key in enumerate(own.keys_between(self._next, end), 1):
            if key not in there:
                self._differing.append(Deletion(self._place.revision, key))
            if number % KEYS_AT_ONCE == 0:
                yield
        self._differing += (record for key, record in there.items() if own.version(key) != record.version)
        self._next = end


def _data(part: bytes) -> Iterator[DataRecord]:
    for record in decode(part):
        yield _as_data(record)


def _as_data(record: LogRecord) -> DataRecord:
    if not isinstance(record, DataRecord):
        raise CorruptRecord(f"a {type(record).__name__} does not belong in an image")
    return record
