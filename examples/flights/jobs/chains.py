"""Chains of late flights: an aircraft lands late, so it departs late, so it lands late, and so on.

A **chain** is the longest run of flights of one aircraft, in order of departure, with these properties. Each flight
except the first departed more than 15 minutes late. The flight before it landed more than 15 minutes late, and at most
12 hours earlier. A chain has at least two flights.

The definition depends on the order of event times, and a stream does not have that order. An aircraft's events have the
same key, so they arrive in the order in which they were sent. But a delayed flight lands after the next day's
transaction was sent. So events wait in the state until the watermark says that no earlier event can come. Then they are
processed in the order of their event times. So the result depends only on the events, not on micro-batches or kills.
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
"""An aircraft that has not landed within this time was diverted."""
WITHOUT_NUMBER = "NA"

COLUMNS = "tailnum STRING, started TIMESTAMP, ended TIMESTAMP, legs LONG, delay_minutes LONG, route STRING"
"""The columns of the result: departures of the first and the last flight, number of flights, total departure delay of
all flights except the first (in minutes), and their routes, such as `EWR-ORD EWR-BOS`."""


class Event(NamedTuple):
    """An event that waits for the watermark."""

    time_ms: int
    kind: str
    leg: str
    route: str
    delay: int

    @property
    def turn(self) -> tuple[int, bool, str]:
        """The order of processing. An aircraft that lands and departs in the same minute landed first."""
        return self.time_ms, self.kind != "landed", self.leg


class Chain(NamedTuple):
    """The state of an aircraft: its last flight, and the chain of that flight, which may have only one flight yet."""

    started_ms: int
    ended_ms: int
    legs: int
    delay_minutes: int
    route: str
    leg: str
    landed_ms: int = 0
    """When the last flight landed; 0 before that."""
    landed_late: bool = False

    @property
    def over_ms(self) -> int:
        """The time from which no further flight can belong to this chain."""
        return (self.landed_ms or self.ended_ms + FLIGHT_MS_MAX) + TURNAROUND_MS_MAX

    def goes_on_with(self, departure: Event) -> bool:
        """Return whether the departure continues this chain."""
        is_soon = self.landed_ms > 0 and departure.time_ms - self.landed_ms <= TURNAROUND_MS_MAX
        return self.landed_late and is_soon and departure.delay > LATE_MINUTES


def advance(chain: Chain | None, event: Event) -> tuple[Chain | None, Chain | None]:
    """Process the next event of an aircraft. Return its new state, and the chain that the event has ended, if any."""
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
    """Processes the events of one aircraft at a time, with the state that Spark keeps for it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._waiting = handle.getListState("waiting", "time_ms LONG, kind STRING, leg STRING, route STRING, delay INT")
        self._chain = handle.getValueState(
            "chain",
            "started_ms LONG, ended_ms LONG, legs INT, delay_minutes INT, route STRING, leg STRING, "
            "landed_ms LONG, landed_late BOOLEAN",
        )

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:
        """Store the events, and set a timer for the last of them."""
        events = [Event(row.time_ms, row.kind, row.leg, row.route, row.delay) for row in rows if row.kind != "tick"]
        if events:
            self._waiting.appendList(list(events))
            self._handle.registerTimer(max(event.time_ms for event in events))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Row]:
        """Process all events that the watermark has passed."""
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
    """Return the chains of all aircraft with a tail number. Each chain is emitted once, when it has ended."""
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
