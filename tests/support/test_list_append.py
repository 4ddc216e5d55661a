"""The judge of list-append histories gets histories with one anomaly each, and finds that one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pytest

from tests.support.history import Fate
from tests.support.list_append.cycles import cycles
from tests.support.list_append.history import Append, Entry, History, Logs, Reading, Transaction, transactions_in
from tests.support.list_append.judge import ALLOWED, Anomaly, broken, judge

C, A, U, O = Fate.COMMITTED, Fate.ABORTED, Fate.UNKNOWN, Fate.OPEN  # noqa: E741 - as in the tables of the literature


class Story:
    """Transactions that follow each other: the nth asks for its commit at 10 n + 5, and is told at 10 n + 6.

    Values are 10 n + number. A list's log has what was appended in this order, unless the test changes it.
    """

    def __init__(self, *transactions: tuple[Fate, Sequence[int]], session: str = "") -> None:
        self.history = History()
        self.everything: dict[int, list[Entry]] = {}
        for number, (fate, lists) in enumerate(transactions):
            made = Transaction(f"t{number}", session or f"s{number}", fate=fate)
            for count, of_list in enumerate(lists):
                made.appends.append(Append(of_list, 10 * number + count))
                log = self.everything.setdefault(of_list, [])
                log.append(Entry(len(log), 10 * number + count))
            if fate in {C, U}:
                made.asked_ns = 10 * number + 5
            if fate in {C, A}:
                made.told_ns = 10 * number + 6
            self.history.transactions.append(made)
        shown = {append.value for one in self.history.transactions if one.fate in {C, U} for append in one.appends}
        self.committed = {
            of_list: [entry for entry in log if entry.value in shown] for of_list, log in self.everything.items()
        }

    def reads(self, reader: int, of_list: int, values: Sequence[int], *, at_ns: int, end: int | None = None) -> None:
        """Let a transaction read these values, in an instant."""
        offsets = {entry.value: entry.offset for entry in self.everything.get(of_list, ())}
        entries = tuple(Entry(offsets.get(value, 90 + n), value) for n, value in enumerate(values))
        end = max((entry.offset for entry in entries), default=-1) + 1 if end is None else end
        self.history.transactions[reader].readings.append(Reading(of_list, at_ns, at_ns, end, entries))

    def judged(self) -> Mapping[Anomaly, list[str]]:
        return judge(self.history, self.committed, self.everything)


def good() -> Story:
    story = Story((C, [0, 1, 0]), (A, [0, 1]), (U, [1]), (O, [0]), (C, [0, 1]))
    story.reads(1, 0, [0, 2], at_ns=12)
    story.reads(4, 0, [0, 2], at_ns=41)
    story.reads(4, 1, [1, 20], at_ns=42)
    return story


def test_a_history_that_keeps_all_promises_is_not_complained_of() -> None:
    """An unknown outcome may be either one. An open transaction hides what comes after it."""
    assert good().judged() == {}
    story = good()
    story.committed[1] = [entry for entry in story.committed[1] if entry.value != 20]
    story.history.transactions[4].readings.pop()
    assert story.judged() == {}
    hidden = Story((O, [0]), (C, [0]), (C, []))
    hidden.reads(2, 0, [], at_ns=25)
    assert hidden.judged() == {}


def aborted_at_the_end() -> Story:
    story = Story((C, [0]), (A, [0]))
    story.committed[0].append(Entry(1, 10))
    return story


def aborted_read() -> Story:
    story = Story((A, [0]), (C, []))
    story.reads(1, 0, [0], at_ns=11)
    return story


def open_read() -> Story:
    story = Story((C, [0]), (C, []))
    story.reads(1, 0, [0], at_ns=3)
    return story


def lost_write() -> Story:
    story = Story((C, [0]), (C, [0]))
    del story.committed[0][0]
    return story


def lost_after_a_read() -> Story:
    story = Story((U, [0]), (C, []))
    story.reads(1, 0, [0], at_ns=15)
    story.committed[0].clear()
    return story


def duplicate_write() -> Story:
    story = Story((C, [0]))
    for log in (story.committed[0], story.everything[0]):
        log.append(Entry(1, 0))
    return story


def duplicate_read() -> Story:
    story = Story((C, [0]), (C, []))
    story.reads(1, 0, [0, 0], at_ns=15)
    return story


def stray_write() -> Story:
    story = Story((C, [0]))
    story.committed[1] = [Entry(0, 0)]
    story.committed[0].clear()
    return story


def stray_read() -> Story:
    story = Story((C, [0]), (C, []))
    story.reads(1, 0, [0, 77], at_ns=15, end=1)
    return story


def torn_transaction() -> Story:
    story = Story((U, [0, 1]))
    story.committed[1].clear()
    return story


def inconsistent_offsets() -> Story:
    story = Story((C, [0]), (C, []))
    story.history.transactions[1].readings.append(Reading(0, 15, 15, 1, (Entry(5, 0),)))
    return story


def inconsistent_answers() -> Story:
    story = Story((C, [0, 0]))
    story.history.transactions[0].acked = {0: 0, 1: 0}
    return story


def skipped_read() -> Story:
    story = Story((C, [0]), (C, [0]), (C, []))
    story.reads(2, 0, [10], at_ns=25)
    return story


def skipped_by_a_reader_that_is_at_the_end() -> Story:
    story = Story((C, [0]), (C, []))
    story.reads(1, 0, [], at_ns=15, end=1)
    return story


def stale_read() -> Story:
    story = Story((C, [0]), (A, [0]), (C, [0]), (C, []))
    story.reads(3, 0, [0], at_ns=35)
    return story


def reordered_writes() -> Story:
    story = Story((C, [0, 0]))
    story.committed[0].reverse()
    return story


def reordered_transactions() -> Story:
    story = Story((C, [0]), (C, [0]), session="s")
    story.committed[0].reverse()
    return story


def read_cycle() -> Story:
    story = Story((C, [0]), (C, [1]))
    story.reads(0, 1, [10], at_ns=20)
    story.reads(1, 0, [0], at_ns=20)
    return story


def write_cycle() -> Story:
    story = Story((C, [0, 1]), (C, [0, 1]))
    story.committed[1] = story.everything[1] = [Entry(0, 11), Entry(1, 1)]
    return story


def information_cycle() -> Story:
    story = Story((C, [0]), (C, [0, 1]))
    story.reads(0, 1, [11], at_ns=20)
    return story


def intermediate_read() -> Story:
    story = Story((C, [0, 0]), (O, []), (C, []))
    story.reads(2, 0, [0], at_ns=5)
    return story


def fractured_read() -> Story:
    story = Story((O, [1]), (C, [0, 1]), (C, []))
    story.reads(2, 0, [10], at_ns=25)
    story.reads(2, 1, [], at_ns=26)
    return story


BAD: Final[Sequence[tuple[Callable[[], Story], set[Anomaly]]]] = [
    (aborted_at_the_end, {Anomaly.DIRTY_READ}),
    (aborted_read, {Anomaly.DIRTY_READ}),
    (open_read, {Anomaly.DIRTY_READ}),
    (lost_write, {Anomaly.LOST_WRITE}),
    (lost_after_a_read, {Anomaly.LOST_WRITE}),
    (duplicate_write, {Anomaly.DUPLICATE_WRITE, Anomaly.INCONSISTENT_OFFSETS}),
    (duplicate_read, {Anomaly.DUPLICATE_WRITE}),
    (stray_write, {Anomaly.STRAY_WRITE}),
    (stray_read, {Anomaly.STRAY_WRITE}),
    (torn_transaction, {Anomaly.TORN_TRANSACTION}),
    (inconsistent_offsets, {Anomaly.INCONSISTENT_OFFSETS}),
    (inconsistent_answers, {Anomaly.INCONSISTENT_OFFSETS}),
    (skipped_read, {Anomaly.SKIPPED_READ}),
    (skipped_by_a_reader_that_is_at_the_end, {Anomaly.SKIPPED_READ}),
    (stale_read, {Anomaly.STALE_READ}),
    (reordered_writes, {Anomaly.REORDERED_WRITES}),
    (reordered_transactions, {Anomaly.REORDERED_WRITES}),
    (read_cycle, {Anomaly.READ_CYCLE, Anomaly.INFORMATION_CYCLE}),
    (write_cycle, {Anomaly.WRITE_CYCLE, Anomaly.INFORMATION_CYCLE}),
    (information_cycle, {Anomaly.INFORMATION_CYCLE}),
    (intermediate_read, {Anomaly.INTERMEDIATE_READ}),
    (fractured_read, {Anomaly.FRACTURED_READ}),
]


@pytest.mark.parametrize(("make", "anomalies"), BAD)
def test_each_anomaly_is_found_and_named(make: Callable[[], Story], anomalies: set[Anomaly]) -> None:
    found = make().judged()
    assert set(found) == anomalies, found
    assert bool(broken(found)) is bool(anomalies - ALLOWED)


def test_every_anomaly_has_a_bad_history() -> None:
    assert {anomaly for _, anomalies in BAD for anomaly in anomalies} == set(Anomaly)


def test_a_client_that_was_killed_leaves_an_unknown_outcome() -> None:
    events = [
        {"what": "began", "at_ns": 1},
        {"what": "append", "at_ns": 2, "list": 3, "value": 4},
        {"what": "acked", "at_ns": 3, "value": 4, "offset": 9},
        {"what": "asked", "at_ns": 4, "commit": True},
        {"what": "told", "at_ns": 5, "commit": True},
        {"what": "began", "at_ns": 6},
        {"what": "read", "at_ns": 8, "began_ns": 7, "list": 3, "end": 10, "entries": [[9, 4]]},
        {"what": "asked", "at_ns": 9, "commit": True},
        {"what": "began", "at_ns": 10},
        {"what": "asked", "at_ns": 11, "commit": False},
    ]
    first, second, third = transactions_in("s", events)
    assert (first.appends, first.acked, first.fate, first.asked_ns, first.told_ns) == ([(3, 4)], {4: 9}, C, 4, 5)
    assert (second.readings, second.fate) == ([Reading(3, 7, 8, 10, (Entry(9, 4),))], U)
    assert third.fate is O


def test_circles_are_found_in_long_graphs() -> None:
    chain = {str(n): {str(n + 1)} for n in range(5_000)}
    assert cycles(chain) == []
    assert cycles({"a": {"a"}, "b": {"c"}, "c": {"d", "b"}}) == [["b", "c"]]
    (circle,) = cycles(chain | {"5000": {"0"}})
    assert len(circle) == 5_001


def test_logs_of_lists_that_nobody_wrote_are_empty() -> None:
    logs: Logs = {0: []}
    assert judge(History([Transaction("t", "s", fate=C)]), logs, logs) == {}
