"""Chains of late flights: an aircraft lands late, so it leaves late, so it lands late, and so on.

A **chain** is the longest run of flights of one aircraft, in order of departure, in which each but the first departed
more than 15 minutes late, and the one before it had landed more than 15 minutes late and at most 12 hours earlier. It
has two flights at least.

That is about order, and a stream has none that can be relied on: an aircraft's events are in order within its topic
(they have the same key), but a delayed flight lands after the next day's transaction was sent. So events wait in state
until the watermark says that nothing from before them can come any more, and are then looked at in order of their
event times. So the answer depends on the events and on nothing else, neither on micro-batches nor on kills.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from .watermark import WATERMARK_DELAY

LATE_MINUTES = 15
TURNAROUND_MS_MAX = 12 * 3600 * 1000
FLIGHT_MS_MAX = 24 * 3600 * 1000
"""Who has not landed by then was diverted."""
WITHOUT_NUMBER = "NA"

COLUMNS = "tailnum STRING, started TIMESTAMP, ended TIMESTAMP, legs LONG, delay_minutes LONG, route STRING"
"""Of the result: when the first and the last flight departed, how many there were, how many minutes late all but the
first departed, and where they went, as in `EWR-ORD EWR-BOS`."""


class Event(NamedTuple):
    """What waits for its turn."""

    time_ms: int
    kind: str
    leg: str
    route: str
    delay: int

    @property
    def turn(self) -> tuple[int, bool, str]:
        """Events are looked at in this order: who lands in the minute in which it departs again has landed before."""
        return self.time_ms, self.kind != "landed", self.leg


class Chain(NamedTuple):
    """What is remembered of an aircraft: its last flight, and the chain that this belongs to, maybe alone."""

    started_ms: int
    ended_ms: int
    legs: int
    delay_minutes: int
    route: str
    leg: str
    landed_ms: int = 0
    """Of the last flight; 0 while it has not landed."""
    landed_late: bool = False

    @property
    def over_ms(self) -> int:
        """From when on nothing can belong to this chain any more."""
        return (self.landed_ms or self.ended_ms + FLIGHT_MS_MAX) + TURNAROUND_MS_MAX

    def goes_on_with(self, departure: Event) -> bool:
        """Whether that is the next flight of this chain."""
        is_soon = self.landed_ms > 0 and departure.time_ms - self.landed_ms <= TURNAROUND_MS_MAX
        return self.landed_late and is_soon and departure.delay > LATE_MINUTES


def advance(chain: Chain | None, event: Event) -> tuple[Chain | None, Chain | None]:
    """The next event of an aircraft: what is remembered after it, and the chain that it has ended."""
    if event.kind == "landed":
        if chain is not None and chain.leg == event.leg:
            chain = chain._replace(landed_ms=event.time_ms, landed_late=event.delay > LATE_MINUTES)
        return chain, None
    if chain is not None and chain.goes_on_with(event):
        return Chain(
            chain.started_ms,
            event.time_ms,
            chain.legs + 1,
            chain.delay_minutes + event.delay,
            f"{chain.route} {event.route}",
            event.leg,
        ), None
    return Chain(event.time_ms, event.time_ms, 1, 0, event.route, event.leg), chain


class LateChains(StatefulProcessor):
    """One aircraft at a time, by what Spark keeps for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name what is kept."""
        self._handle = handle
        self._waiting = handle.getListState("waiting", "time_ms LONG, kind STRING, leg STRING, route STRING, delay INT")
        self._chain = handle.getValueState(
            "chain",
            "started_ms LONG, ended_ms LONG, legs INT, delay_minutes INT, route STRING, leg STRING, "
            "landed_ms LONG, landed_late BOOLEAN",
        )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        """Let the events wait until the last of them has its turn."""
        events = [Event(row.time_ms, row.kind, row.leg, row.route, row.delay) for row in rows if row.kind != "tick"]
        if events:
            self._waiting.appendList(list(events))
            self._handle.registerTimer(max(event.time_ms for event in events))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Look at all events whose turn has come."""
        now_ms = timerValues.getCurrentWatermarkInMs()
        waiting = [Event(*event) for event in self._waiting.get()]
        due = sorted((event for event in waiting if event.time_ms <= now_ms), key=lambda event: event.turn)
        kept = self._chain.get() if self._chain.exists() else None
        chain = None if kept is None else Chain(*kept)
        ended = []
        for event in due:
            chain, before = advance(chain, event)
            ended.append(before)
        if chain is not None and chain.over_ms <= now_ms:
            ended.append(chain)
            chain = None
        self._keep([event for event in waiting if event.time_ms > now_ms] if due else None, chain)
        yield from (_row(str(key[0]), one) for one in ended if one is not None and one.legs > 1)

    def _keep(self, waiting: list[Event] | None, chain: Chain | None) -> None:
        if waiting:
            self._waiting.put(list(waiting))
        elif waiting is not None:
            self._waiting.clear()
        if chain is None:
            self._chain.clear()
        else:
            self._chain.update(chain)
            self._handle.registerTimer(chain.over_ms)


def late_chains(events: DataFrame) -> DataFrame:
    """The chains of all aircraft that are known by their number; each comes out once, when it has ended."""
    return (
        events.withWatermark("event_time", WATERMARK_DELAY)
        .where(f.col("kind").isin("departed", "landed", "tick") & (f.col("tailnum") != WITHOUT_NUMBER))
        .select(
            *("event_time", "tailnum", "kind", "leg", "delay"),
            f.unix_millis("event_time").alias("time_ms"),
            f.concat_ws("-", "origin", "dest").alias("route"),
        )
        .groupBy("tailnum")
        .transformWithState(LateChains(), COLUMNS, outputMode="Append", timeMode="EventTime")
    )


def _row(tailnum: str, chain: Chain) -> Row:
    return Row(
        tailnum=tailnum,
        started=datetime.fromtimestamp(chain.started_ms / 1000, UTC),
        ended=datetime.fromtimestamp(chain.ended_ms / 1000, UTC),
        legs=chain.legs,
        delay_minutes=chain.delay_minutes,
        route=chain.route,
    )
