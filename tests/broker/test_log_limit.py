"""Floods of log lines."""

from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import LogCapture
from trio.testing import MockClock, wait_all_tasks_blocked

from broker import log_limit
from broker.log_limit import (
    EVENT_LINES_MAX,
    KIND_LINES_MAX,
    KINDS_MAX,
    PERIOD_SECONDS,
    REPORT_SECONDS,
    SUPPRESSED,
    LogLimit,
)
from tests.support.idle import TaskSteps


class Rig:
    """A limit, a clock that a test moves, and the written lines."""

    def __init__(self) -> None:
        self.now = 100.0
        self.limit = LogLimit(lambda: self.now)
        self.captured = LogCapture()
        structlog.configure(processors=[self.limit, self.captured])
        self.log = structlog.get_logger()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the lines that are not counts."""
        return [dict(line) for line in self.captured.entries if line["event"] != SUPPRESSED]

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Return the counts of omitted lines, in order."""
        return [(line["like"], line["count"]) for line in self.captured.entries if line["event"] == SUPPRESSED]


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    before = structlog.get_config()
    made = Rig()
    # Its logger remembers the processors of its first use.
    monkeypatch.setattr(log_limit, "log", structlog.get_logger())
    yield made
    structlog.configure(**before)


def test_the_first_lines_of_a_second_are_written_and_the_others_counted(rig: Rig) -> None:
    """E12: each second starts anew, and each line is either written or counted."""
    for _ in range(3):
        for _ in range(1_000):
            rig.log.info("refused", topic="a")
        rig.now += PERIOD_SECONDS
    assert len(rig.lines) == 3 * KIND_LINES_MAX
    rig.limit.report()
    assert rig.counts == [("refused", 3_000 - 3 * KIND_LINES_MAX)]
    rig.limit.report()
    assert len(rig.counts) == 1


@pytest.mark.parametrize("key", ["topic", "peer", "reason", "subscription"])
def test_a_line_about_something_else_is_not_lost_in_a_flood(rig: Rig, key: str) -> None:
    for _ in range(100):
        rig.log.info("refused", **{key: "a"})
    rig.log.info("refused", **{key: "b"})
    rig.log.warning("refused", **{key: "a"})
    rig.log.info("another")
    assert len(rig.lines) == KIND_LINES_MAX + 3


def test_what_only_counts_up_makes_no_other_line(rig: Rig) -> None:
    for number in range(100):
        rig.log.info("refused", connections=number)
    assert len(rig.lines) == KIND_LINES_MAX


def test_a_flood_about_ever_other_things_is_bounded_too(rig: Rig) -> None:
    """E12: a client may name another topic in each request; neither lines nor memory grow with that."""
    for number in range(5 * KINDS_MAX):
        rig.log.info("refused", topic=f"topic-{number}")
        rig.now += PERIOD_SECONDS / KINDS_MAX
    assert len(rig.lines) <= 6 * EVENT_LINES_MAX
    assert len(rig.limit._kinds) <= KINDS_MAX
    rig.limit.report()
    assert rig.counts == [("refused", 5 * KINDS_MAX - len(rig.lines))]
    rig.log.info("another")
    assert rig.lines[-1]["event"] == "another"


def test_kinds_are_told_apart_again_when_others_are_over(rig: Rig) -> None:
    for number in range(KINDS_MAX):
        rig.log.info("refused", topic=f"topic-{number}")
        rig.now += PERIOD_SECONDS / KINDS_MAX
    rig.limit.report()
    rig.now += PERIOD_SECONDS
    before = len(rig.lines)
    for _ in range(100):
        rig.log.info("refused", topic="another")
    assert len(rig.lines) == before + KIND_LINES_MAX


def test_long_texts_are_not_kept(rig: Rig) -> None:
    rig.log.info("refused", reason="x" * 1_000_000)
    assert sum(len(part) for kind in rig.limit._kinds for part in kind) < 1_000


async def test_counts_are_written_while_a_flood_lasts_and_after_its_end(rig: Rig, autojump_clock: MockClock) -> None:
    """E12: waiting for a flood costs nothing."""
    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.limit.run)
        with TaskSteps() as steps:
            await wait_all_tasks_blocked()
            steps.clear()
            await trio.sleep(1_000)
            assert steps.of("run") == 0
        for _ in range(3):
            for _ in range(10):
                rig.log.info("refused")
            await trio.sleep(REPORT_SECONDS + 1)
            rig.now += REPORT_SECONDS + 1
        assert rig.counts == [("refused", 10 - KIND_LINES_MAX)] * 3
        await trio.sleep(1_000)
        assert len(rig.counts) == 3
        for _ in range(10):
            rig.log.info("refused")
        nursery.cancel_scope.cancel()
    assert len(rig.counts) == 4, "what is not told yet is told at the end"
    assert trio.current_time() - start > 1_000


async def test_any_thread_may_log(rig: Rig, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.limit.run)
        await wait_all_tasks_blocked()

        def flood() -> None:
            for _ in range(100):
                rig.log.info("refused")

        await trio.to_thread.run_sync(flood)
        await trio.sleep(REPORT_SECONDS + 1)
        # The clock may jump to a report while the thread still logs.
        assert sum(count for _event, count in rig.counts) == 100 - KIND_LINES_MAX
        assert len(rig.lines) == KIND_LINES_MAX
        nursery.cancel_scope.cancel()
