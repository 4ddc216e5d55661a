"""Judges a history of list-append transactions against the logs at its end. Pure.

    found = judge(history, committed, everything)
    found[Anomaly.LOST_WRITE]          # complaints
    broken(found)                      # those that break a promise

The names in brackets are those of Adya and of Elle. A log is no database, so some of its phenomena are no anomalies:

- Producers do not wait for each other. So the writes of two transactions may interleave, in another order in another
  partition: WRITE_CYCLE (G0). With reads in the circle it is INFORMATION_CYCLE (G1c). Both are counted, and allowed.
- A reader gets a prefix of each partition, up to its first open transaction. So it may get the first half of a
  committed transaction's records there, INTERMEDIATE_READ (G1b), and those in one partition before those in another,
  FRACTURED_READ. Both are counted, and allowed. By the end, all or nothing is there: TORN_TRANSACTION is not allowed.
- What a circle of reads alone would need is that each of two transactions was committed before the other:
  READ_CYCLE, the part of G1c that no broker may show.

These cannot be judged. Nothing is overwritten and nobody reads to write, so there are no lost updates (P4). Reads are
not isolated from writes, so a reader that misses a write says nothing (G-single, G2, write skew). A record has no
predicate, so there are no phantoms.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from tests.support.history import Fate
from tests.support.list_append.cycles import cycles
from tests.support.list_append.history import Entry, History, Log, Logs, Reading, Transaction


class Anomaly(Enum):
    """A phenomenon. The values say what it is."""

    DIRTY_READ = "a reader got a record of an aborted transaction, or of one that was still open (G1a)"
    LOST_WRITE = "a record is not there, though its commit was answered or a reader had it"
    DUPLICATE_WRITE = "a record is there twice"
    STRAY_WRITE = "a record is there that nobody sent to this list"
    TORN_TRANSACTION = "some records of a transaction are there at the end, and some are not"
    INCONSISTENT_OFFSETS = "a record has two offsets, or an offset has two records"
    SKIPPED_READ = "a reader passed over a record that is there"
    STALE_READ = "a reader began after the commit was answered, and nothing open held it back, and it got no record"
    REORDERED_WRITES = "records of one session stand in another order than they were sent in"
    READ_CYCLE = "each of some transactions has read from the one before, in a circle (G1c)"
    WRITE_CYCLE = "the records of some transactions are in another order in another list (G0)"
    INFORMATION_CYCLE = "a circle of reads and writes (G1c)"
    INTERMEDIATE_READ = "a reader got some records of a transaction from a list, and not all (G1b)"
    FRACTURED_READ = "a reader got a transaction's records from one list, and later none of them from another"


ALLOWED: Final = frozenset(
    {Anomaly.WRITE_CYCLE, Anomaly.INFORMATION_CYCLE, Anomaly.INTERMEDIATE_READ, Anomaly.FRACTURED_READ}
)
"""What a log shows although it keeps all promises."""

Found: TypeAlias = Mapping[Anomaly, list[str]]
_Complaint: TypeAlias = tuple[Anomaly, str]


def judge(history: History, committed: Logs, everything: Logs) -> Found:
    """Return all anomalies, with words for each.

    Args:
        history: what clients did and saw.
        committed: what a new reader of committed records gets of each list, when all transactions have ended.
        everything: the same of a reader of all records, aborted ones too.
    """
    found: dict[Anomaly, list[str]] = defaultdict(list)
    writers = {append.value: transaction for transaction in history.transactions for append in transaction.appends}
    for anomaly, words in (
        *_at_the_end(history, committed),
        *_offsets(history, committed, everything),
        *(one for each in history.readings for one in _reading(*each, writers, committed, everything)),
        *_fractures(history, writers, committed),
        *_circles(history, writers, committed),
    ):
        found[anomaly].append(words)
    return found


def broken(found: Found) -> list[str]:
    """Return the complaints about broken promises."""
    return [f"{anomaly.name}: {words}" for anomaly, all_ in found.items() if anomaly not in ALLOWED for words in all_]


def _at_the_end(history: History, committed: Logs) -> Iterator[_Complaint]:
    places: dict[int, list[int]] = defaultdict(list)
    for of_list, log in committed.items():
        for entry in log:
            places[entry.value].append(of_list)
    sent = {append.value: append.of_list for one in history.transactions for append in one.appends}
    for value, lists in places.items():
        if sent.get(value) not in lists or set(lists) != {sent[value]}:
            yield Anomaly.STRAY_WRITE, f"{value} is in lists {lists}, and was sent to {sent.get(value)}"
        elif len(lists) > 1:
            yield Anomaly.DUPLICATE_WRITE, f"{value} is {len(lists)} times in list {lists[0]}"
    for transaction in history.transactions:
        there = [append.value for append in transaction.appends if append.value in places]
        missing = [append.value for append in transaction.appends if append.value not in places]
        if transaction.fate in {Fate.OPEN, Fate.ABORTED} and there:
            yield Anomaly.DIRTY_READ, f"{_named(transaction)} shows {there} at the end"
        if transaction.fate is Fate.COMMITTED and missing:
            yield Anomaly.LOST_WRITE, f"{_named(transaction)} lacks {missing} at the end"
        if there and missing:
            yield Anomaly.TORN_TRANSACTION, f"{_named(transaction)} shows {there} and lacks {missing}"
    yield from _orders(history, committed)


def _orders(history: History, committed: Logs) -> Iterator[_Complaint]:
    turns: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for transaction in history.transactions:
        for append in transaction.appends:
            turn = turns[transaction.session, append.of_list]
            turn[append.value] = len(turn)
    for (session, of_list), turn in turns.items():
        own = [entry.value for entry in committed.get(of_list, ()) if entry.value in turn]
        for before, after in pairwise(own):
            if turn[before] > turn[after]:
                yield Anomaly.REORDERED_WRITES, f"session {session} sent {after} before {before} to list {of_list}"


def _offsets(history: History, committed: Logs, everything: Logs) -> Iterator[_Complaint]:
    for of_list, log in everything.items():
        offsets: dict[int, set[int]] = defaultdict(set)
        values: dict[int, set[int]] = defaultdict(set)
        seen = [*log, *committed.get(of_list, ())]
        seen += [entry for _, reading in history.readings if reading.of_list == of_list for entry in reading.entries]
        for transaction in history.transactions:
            own = {append.value for append in transaction.appends if append.of_list == of_list}
            seen += [Entry(offset, value) for value, offset in transaction.acked.items() if value in own]
        for entry in seen:
            offsets[entry.value].add(entry.offset)
            values[entry.offset].add(entry.value)
        for what, has, places in (("value", "offsets", offsets), ("offset", "values", values)):
            for one, several in places.items():
                if len(several) > 1:
                    words = f"{what} {one} of list {of_list} has the {has} {sorted(several)}"
                    yield Anomaly.INCONSISTENT_OFFSETS, words


def _reading(
    reader: Transaction, reading: Reading, writers: Mapping[int, Transaction], committed: Logs, everything: Logs
) -> Iterator[_Complaint]:
    who = f"a reading of list {reading.of_list} in {reader.name}"
    log = committed.get(reading.of_list, ())
    values = [entry.value for entry in reading.entries]
    there = {entry.value for entry in log}
    for value in values:
        writer = writers.get(value)
        if writer is None:
            yield Anomaly.STRAY_WRITE, f"{who} has {value}, which nobody sent"
        elif writer.fate in {Fate.OPEN, Fate.ABORTED}:
            yield Anomaly.DIRTY_READ, f"{who} has {value} of {_named(writer)}"
        elif writer.asked_ns is not None and reading.ended_ns < writer.asked_ns:
            yield Anomaly.DIRTY_READ, f"{who} has {value}, and {_named(writer)} asked for its commit later"
        elif value not in there:
            yield Anomaly.LOST_WRITE, f"{who} has {value} of {_named(writer)}, and it is not there at the end"
    if len(set(values)) < len(values):
        yield Anomaly.DUPLICATE_WRITE, f"{who} has a value twice: {values}"
    last = max((entry.offset for entry in reading.entries), default=-1)
    skipped = [entry for entry in log if entry.offset < max(last, reading.end) and entry.value not in values]
    if skipped:
        yield Anomaly.SKIPPED_READ, f"{who} to {reading.end} passed over {skipped}"
    yield from _stale(who, reading, writers, log, everything.get(reading.of_list, ()))
    yield from _intermediate(who, reading, writers, log)


def _stale(
    who: str, reading: Reading, writers: Mapping[int, Transaction], log: Log, everything: Log
) -> Iterator[_Complaint]:
    """Complain about what was committed before the reading, and is behind its end without a reason.

    The reason is a record at the end, or further up to the one that is missing, whose transaction was not known to have
    ended when the reading began.
    """
    values = {entry.value for entry in reading.entries}
    for entry in log:
        writer = writers.get(entry.value)
        is_behind = entry.offset >= reading.end and entry.value not in values
        if not is_behind or writer is None or not _ended_before(writer, reading):
            continue
        between = (writers.get(one.value) for one in everything if reading.end <= one.offset < entry.offset)
        if all(other is not None and _ended_before(other, reading) for other in between):
            yield Anomaly.STALE_READ, f"{who} to {reading.end} lacks {entry} of {_named(writer)}"


def _ended_before(transaction: Transaction, reading: Reading) -> bool:
    return transaction.told_ns is not None and transaction.told_ns < reading.began_ns


def _intermediate(who: str, reading: Reading, writers: Mapping[int, Transaction], log: Log) -> Iterator[_Complaint]:
    values = {entry.value for entry in reading.entries}
    halves = {
        writer.name
        for entry in log
        if entry.value not in values
        and (writer := writers.get(entry.value)) is not None
        and any(append.of_list == reading.of_list and append.value in values for append in writer.appends)
    }
    if halves:
        yield Anomaly.INTERMEDIATE_READ, f"{who} has a part of {sorted(halves)}"


def _fractures(history: History, writers: Mapping[int, Transaction], committed: Logs) -> Iterator[_Complaint]:
    there = {of_list: {entry.value for entry in log} for of_list, log in committed.items()}
    for reader in history.transactions:
        seen: dict[str, Transaction] = {}
        for reading in reader.readings:
            values = {entry.value for entry in reading.entries}
            for name, writer in seen.items():
                own = {append.value for append in writer.appends if append.of_list == reading.of_list}
                own &= there.get(reading.of_list, set())
                if own and not own & values:
                    words = f"{reader.name} has {name} from another list, and not {sorted(own)} from {reading.of_list}"
                    yield Anomaly.FRACTURED_READ, words
            seen |= {writers[value].name: writers[value] for value in values if value in writers}


def _circles(history: History, writers: Mapping[int, Transaction], committed: Logs) -> Iterator[_Complaint]:
    writes: dict[str, set[str]] = defaultdict(set)
    for log in committed.values():
        owners = [writers[entry.value].name for entry in log if entry.value in writers]
        for before, after in pairwise(owners):
            if before != after:
                writes[before].add(after)
    reads: dict[str, set[str]] = defaultdict(set)
    for reader, reading in history.readings:
        for entry in reading.entries:
            writer = writers.get(entry.value)
            if writer is not None and writer is not reader:
                reads[writer.name].add(reader.name)
    # Who did not commit has told nobody.
    told = {one.name for one in history.transactions if one.fate in {Fate.COMMITTED, Fate.UNKNOWN}}
    reads = {name: readers & told for name, readers in reads.items() if name in told}
    for anomaly, graph in (
        (Anomaly.WRITE_CYCLE, writes),
        (Anomaly.READ_CYCLE, reads),
        (Anomaly.INFORMATION_CYCLE, _joined(writes, reads)),
    ):
        for circle in cycles(graph):
            yield anomaly, f"{len(circle)} transactions: {circle[:10]}"


def _joined(*graphs: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    joined: dict[str, set[str]] = defaultdict(set)
    for graph in graphs:
        for name, others in graph.items():
            joined[name] |= set(others)
    return joined


def _named(transaction: Transaction) -> str:
    return f"transaction {transaction.name} ({transaction.fate.value})"
