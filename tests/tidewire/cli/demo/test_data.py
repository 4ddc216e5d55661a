"""The demo's events and transactions, from the data set itself."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tidewire.cli.demo import data
from tidewire.cli.demo.data import (
    AircraftDay,
    DataMissing,
    aircraft_days,
    count_transactions,
    events_of,
    find_data,
    name_transactions,
    read_flights,
)

SCHEDULED_MS = 1_357_034_400_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return name_transactions(read_flights(find_data(), 2))


@pytest.fixture(scope="module")
def days(flights: pd.DataFrame) -> list[AircraftDay]:
    return list(aircraft_days(flights))


def flight(**columns: object) -> SimpleNamespace:
    usual = {"carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR", "dest": "IAH"}
    times = {"scheduled_ms": SCHEDULED_MS, "dep_delay": 2.0, "air_time": 227.0}
    return SimpleNamespace(**{**usual, **times, **columns})


def test_a_flight_departs_and_lands() -> None:
    departed, landed = events_of(flight(dep_delay=-2.0, air_time=60.0))
    assert (departed.kind, departed.airport, departed.time_ms) == ("departed", "EWR", SCHEDULED_MS - 120_000)
    assert (landed.kind, landed.airport, landed.time_ms) == ("landed", "IAH", SCHEDULED_MS - 120_000 + HOUR_MS)
    assert json.loads(departed.value) == {
        "kind": "departed",
        "flight": "UA1545",
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "delay": -2,
    }
    assert "delay" not in json.loads(landed.value)


def test_a_diverted_flight_only_departs() -> None:
    assert [event.kind for event in events_of(flight(air_time=float("nan")))] == ["departed"]


def test_a_cancelled_flight_does_neither() -> None:
    (cancelled,) = events_of(flight(dep_delay=float("nan"), air_time=float("nan"), tailnum=float("nan")))
    assert (cancelled.kind, cancelled.airport, cancelled.time_ms) == ("cancelled", "EWR", SCHEDULED_MS)
    assert json.loads(cancelled.value)["tailnum"] is None


def test_days_are_those_of_the_schedule(flights: pd.DataFrame) -> None:
    assert {(month, day) for month, day in zip(flights["month"], flights["day"], strict=True)} == {(1, 1), (1, 2)}
    # New York's second of January ends at five in the morning of the third, in UTC.
    assert flights["scheduled"].min() >= pd.Timestamp("2013-01-01T05:00Z")
    assert flights["scheduled"].max() < pd.Timestamp("2013-01-03T05:00Z")


def test_every_flight_is_in_the_transaction_of_its_aircraft_and_day(
    flights: pd.DataFrame, days: list[AircraftDay]
) -> None:
    assert len(days) == count_transactions(flights) == len({day.name for day in days})
    for day in days:
        tail, date = day.name.split("|")
        values = [json.loads(event.value) for event in day.events]
        assert {value["tailnum"] or "NA" for value in values} == {tail}
        assert date in {"20130101", "20130102", "20130103"}
    kinds = Counter(event.kind for day in days for event in day.events)
    departed = flights["dep_delay"].notna()
    assert kinds == {
        "departed": departed.sum(),
        "landed": flights["air_time"].notna().sum(),
        "cancelled": (~departed).sum(),
    }


def test_event_times_are_the_schedules_plus_delay_and_time_in_the_air(
    flights: pd.DataFrame, days: list[AircraftDay]
) -> None:
    got = sorted(event.time_ms for day in days for event in day.events if event.kind == "landed")
    landed = flights[flights["air_time"].notna()]
    moments = landed["scheduled"] + pd.to_timedelta(landed["dep_delay"] + landed["air_time"], unit="min")
    assert got == sorted(moments.astype("int64") // 1_000_000)


def test_transactions_come_in_the_order_of_the_schedule(flights: pd.DataFrame, days: list[AircraftDay]) -> None:
    first = flights.groupby("transaction")["scheduled"].min()
    starts = [first[day.name] for day in days]
    assert starts == sorted(starts)


def test_about_one_in_ten_is_aborted_first_the_same_ones_each_time(days: list[AircraftDay]) -> None:
    chosen = {day.name for day in days if day.is_aborted_first}
    names = pd.Series([day.name for day in days])
    assert chosen == set(names[pd.util.hash_pandas_object(names, index=False) % 10 == 0])
    assert 0.07 < len(chosen) / len(days) < 0.13


def test_data_that_is_not_there_gets_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for package in ("tidewire_no_such_package", "xml"):
        monkeypatch.setattr(data, "PACKAGE", package)
        with pytest.raises(DataMissing, match="pip install"):
            find_data()
