"""Samples of large change sets: at any moment each one is completely there or completely absent.

A set is `size` records `/big/<set>/<record>`, every tenth of which is in an index under the set's number. The change
set
that writes set n deletes all sets below n - 1. So at any moment there may be two sets, n - 1 and n.

Pure except for `look`, which runs beside the store, in its process.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from storage.metadata.store import DeleteRange, IndexEntry, MetadataStore, Op, Put, starting_with

PREFIX: Final = "/big/"
INDEX: Final = "by-set"
INDEXED: Final = 10
"""Every so many records one stands in the index."""


class Piece(NamedTuple):
    """The existing part of one set."""

    records: int
    versions: frozenset[int]


Pieces = dict[int, Piece]
"""By the set's number."""


class Sample(NamedTuple):
    """What one sample found, and when it was taken, in ticks."""

    invoked: int
    returned: int
    scanned: Pieces
    found: Pieces
    """By the index, a moment later."""


class Attempt(NamedTuple):
    """A set that a writer tried to write."""

    number: int
    invoked: int
    returned: int | None = None
    """None: it was not answered."""
    revision: int = 0


def change_set(number: int, size: int) -> list[Op]:
    """Return the change set that writes a set of `size` records."""
    value = b"%d" % number + b"." * 60
    index = (IndexEntry(INDEX, f"{number:08}"),)
    puts = [
        Put(f"{PREFIX}{number:08}/{record:05}", value, indexes=() if record % INDEXED else index)
        for record in range(size)
    ]
    return [*puts, DeleteRange(PREFIX, f"{PREFIX}{number - 1:08}")]


async def look(store: MetadataStore) -> tuple[Pieces, Pieces]:
    """Sample the current state, with a scan and with the index."""
    scanned = pieces((record.key, record.version) for record in await store.scan(*starting_with(PREFIX)))
    found = pieces((hit.record.key, hit.record.version) for hit in await store.query(INDEX, "", "~"))
    return scanned, found


def pieces(records: Iterable[tuple[str, int]]) -> Pieces:
    """Count records, given by key and version, by their set."""
    counts: dict[int, int] = defaultdict(int)
    versions: dict[int, set[int]] = defaultdict(set)
    for key, version in records:
        number = int(key[len(PREFIX) : len(PREFIX) + 8])
        counts[number] += 1
        versions[number].add(version)
    return {number: Piece(count, frozenset(versions[number])) for number, count in counts.items()}


def judge_samples(samples: Sequence[Sample], attempts: Sequence[Attempt], size: int) -> list[str]:
    """Return complaints about the samples, taken one after another while these attempts were made."""
    complaints: list[str] = []
    highest = 0
    indexed = -(-size // INDEXED)
    for sample in samples:
        for name, here, whole in (("scan", sample.scanned, size), ("index", sample.found, indexed)):
            told = [*_torn(here, attempts, whole), *_misplaced(sample, here, attempts)]
            newest = max(here, default=0)
            if newest < highest:
                told.append(f"set {highest} was there before and is not")
            highest = max(highest, newest)
            complaints += [f"{name} at {sample.invoked} to {sample.returned}: {text}" for text in told]
    return complaints


def judge_steps(steps: Sequence[tuple[Pieces, Pieces]], size: int, *, folds: bool = False) -> list[str]:
    """Return complaints about a watch's reports, step by step: the records written, and those deleted.

    A slow reader may get several change sets at once (`folds`), but never parts.
    """
    complaints: list[str] = []
    there: Pieces = {}
    for number, (written, deleted) in enumerate(steps):
        torn = [piece for piece in (*written.values(), *deleted.values()) if piece.records != size]
        if torn:
            complaints.append(f"step {number} tells {[piece.records for piece in torn]} of {size} records")
        if any(len(piece.versions) != 1 for piece in written.values()):
            complaints.append(f"step {number} tells one set as several revisions")
        if number and len(written) != 1 and not (folds and written):
            complaints.append(f"step {number} writes the sets {sorted(written)}, and one change set writes one")
        if set(deleted) != {known for known in there if known < max(written, default=0) - 1}:
            complaints.append(f"step {number} deletes the sets {sorted(deleted)} of {sorted(there)}")
        there = {known: piece for known, piece in (there | written).items() if known not in deleted}
        if any(known < max(there) - 1 for known in there):
            complaints.append(f"after step {number} the sets {sorted(there)} are there together")
    return complaints


def _torn(here: Pieces, attempts: Sequence[Attempt], whole: int) -> Iterator[str]:
    revisions = {attempt.number: attempt.revision for attempt in attempts if attempt.returned is not None}
    for number, piece in here.items():
        if piece.records != whole:
            yield f"{piece.records} of {whole} records of set {number} are there"
        if len(piece.versions) != 1:
            yield f"set {number} has the versions {sorted(piece.versions)}"
        elif number in revisions and piece.versions != {revisions[number]}:
            yield f"set {number} was written as revision {revisions[number]}, and is {sorted(piece.versions)}"


def _misplaced(sample: Sample, here: Pieces, attempts: Sequence[Attempt]) -> Iterator[str]:
    newest = max(here, default=0)
    if any(number < newest - 1 for number in here):
        yield f"the sets {sorted(here)} are there together"
    answered = {attempt.number for attempt in attempts if attempt.returned is not None}
    if newest - 1 in answered and newest - 1 not in here:
        yield f"set {newest - 1} is gone, though {newest} does not delete it"
    before = max((a.number for a in attempts if a.returned is not None and a.returned < sample.invoked), default=0)
    if newest < before:
        yield f"set {before} was answered and is not there"
    begun = max((attempt.number for attempt in attempts if attempt.invoked < sample.returned), default=0)
    if newest > begun:
        yield f"set {newest} is there, and nobody wrote it yet"
