"""The right answer, which pandas computes from the data set's files, and a comparison of another answer with it.

This module uses no events, transactions or brokers, so a mistake in those cannot appear on both sides.
"""

from pathlib import Path
from typing import Any, Final

import pandas as pd

from tidewire.cli.demo.data import WEATHER_FILE

LATE_MINUTES: Final = 15
"""A departure is late when its delay is more than this."""

KEY: Final = ["origin", "window"]
COUNTS: Final = ["departures", "delay_minutes", "late"]
WEATHER: Final = ["temp", "wind_speed", "precip", "visib"]
HAS_WEATHER: Final = "has_weather"
COLUMNS: Final = [*KEY, *COUNTS, HAS_WEATHER, *WEATHER]
"""The columns of an answer. It has a row for each origin and hour with departures, and that hour's weather if it was
observed. `window` is the hour's start in seconds since the epoch."""

DIFFERENCES_SHOWN: Final = 5


def read_weather(folder: Path) -> pd.DataFrame:
    """Read the weather, with `window` as in an answer."""
    weather = pd.read_csv(
        folder / WEATHER_FILE, usecols=["origin", "time_hour", *WEATHER], float_precision="round_trip"
    )
    return weather.assign(window=_seconds(pd.to_datetime(weather["time_hour"], utc=True)))[[*KEY, *WEATHER]]


def expected_windows(flights: pd.DataFrame, weather: pd.DataFrame) -> pd.DataFrame:
    """Compute the answer for these flights, sorted by `KEY`."""
    departed = flights[flights["dep_delay"].notna()]
    delay = departed["dep_delay"].astype("int64")
    moment = departed["scheduled"] + pd.to_timedelta(delay, unit="min")
    departures = pd.DataFrame(
        {
            "origin": departed["origin"],
            "window": _seconds(moment.dt.floor("h")),
            "delay": delay,
            "is_late": delay > LATE_MINUTES,
        }
    )
    windows = departures.groupby(KEY, as_index=False).agg(
        departures=("delay", "size"), delay_minutes=("delay", "sum"), late=("is_late", "sum")
    )
    joined = windows.merge(weather, on=KEY, how="left", validate="one_to_one", indicator=True)
    return joined.assign(**{HAS_WEATHER: joined["_merge"] == "both"}).sort_values(KEY)[COLUMNS].reset_index(drop=True)


def expected_kinds(flights: pd.DataFrame) -> dict[str, int]:
    """Count the events of each kind that these flights make."""
    departed = flights["dep_delay"].notna()
    landed = departed & flights["air_time"].notna()
    return {"departed": int(departed.sum()), "landed": int(landed.sum()), "cancelled": int((~departed).sum())}


def windows_differ(expected: pd.DataFrame, found: pd.DataFrame) -> list[str]:
    """Describe the differences between two answers, a sentence for each of the first rows; [] if there are none.

    A last sentence counts the other rows that differ. Two missing values are equal. Numbers are compared exactly.
    """
    sentences = [
        f"{_name(row['origin'], row['window'])} is in the answer more than once"
        for _, row in found[found.duplicated(KEY)].iterrows()
    ]
    both = expected.merge(
        found.drop_duplicates(KEY), on=KEY, how="outer", suffixes=("_expected", "_found"), indicator=True
    )
    same = both["_merge"] == "both"
    for column in COLUMNS[len(KEY) :]:
        left, right = both[f"{column}_expected"], both[f"{column}_found"]
        same &= (left == right) | (left.isna() & right.isna())
    for _, row in both[~same].sort_values(KEY).iterrows():
        name = _name(row["origin"], row["window"])
        if row["_merge"] == "left_only":
            sentences.append(f"{name} is missing")
        elif row["_merge"] == "right_only":
            sentences.append(f"{name} should not be there")
        else:
            sentences.append(f"{name}: {', '.join(_changes(row))}")
    more = len(sentences) - DIFFERENCES_SHOWN
    return [*sentences[:DIFFERENCES_SHOWN], *([f"and {more} more windows"] if more > 0 else [])]


def kinds_differ(expected: dict[str, int], found: dict[str, int]) -> list[str]:
    """Describe the differences between two counts of events; [] if there are none."""
    return [
        f"{found.get(kind, 0)} {kind!r} events instead of {expected.get(kind, 0)}"
        for kind in sorted(expected.keys() | found.keys())
        if found.get(kind, 0) != expected.get(kind, 0)
    ]


def _changes(row: "pd.Series[Any]") -> list[str]:
    changes = []
    for column in COLUMNS[len(KEY) :]:
        left, right = row[f"{column}_expected"], row[f"{column}_found"]
        if left != right and not (pd.isna(left) and pd.isna(right)):
            changes.append(f"{column} is {right} instead of {left}")
    return changes


def _name(origin: str, window: int) -> str:
    return f"the window of {origin} from {pd.Timestamp(window, unit='s'):%Y-%m-%d %H:%M}"


def _seconds(moments: "pd.Series[pd.Timestamp]") -> "pd.Series[int]":
    return moments.dt.as_unit("s").astype("int64")
