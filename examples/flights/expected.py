"""The right answer, which pandas computes from the data set's files, without events, transactions, streams or windows.

It computes with whole columns, while the Spark jobs handle one event after another. So the two are unlikely to make the
same mistake.
"""

import pandas as pd

from .flights import WITHOUT_NUMBER, data_folder

# This replaces `pd.to_timedelta(minutes, unit="min")`. For missing minutes, that function rounds uninitialized memory,
# and sometimes warns about an overflow.
MINUTE = pd.Timedelta(minutes=1)
LATE_MINUTES = 15
TURNAROUND_HOURS_MAX = 12
WEATHER = ["temp", "wind_speed", "precip", "visib"]


def hourly(flights: pd.DataFrame) -> pd.DataFrame:
    """Compute the expected result of `jobs/hourly.py`: departures by origin and hour, with the hour's weather."""
    departed = flights[flights["dep_delay"].notna()]
    counted = (
        pd.DataFrame(
            {
                "origin": departed["origin"],
                "hour": _departures(departed).dt.floor("h"),
                "delay": departed["dep_delay"].astype("int64"),
                "late": departed["dep_delay"] > LATE_MINUTES,
            }
        )
        .groupby(["origin", "hour"], as_index=False)
        .agg(departures=("delay", "size"), delay_minutes=("delay", "sum"), late=("late", "sum"))
    )
    weather = pd.read_csv(
        data_folder() / "weather.csv", usecols=["origin", "time_hour", *WEATHER], float_precision="round_trip"
    )
    weather["hour"] = pd.to_datetime(weather.pop("time_hour"), utc=True)
    joined = counted.merge(weather, on=["origin", "hour"], how="left", validate="one_to_one", indicator="observed")
    joined["observed"] = joined["observed"] == "both"
    return joined[["origin", "hour", "departures", "delay_minutes", "late", "observed", *WEATHER]]


def chains(flights: pd.DataFrame) -> pd.DataFrame:
    """Compute the expected result of `jobs/chains.py`: chains of late flights of one aircraft."""
    legs = flights[flights["dep_delay"].notna() & (flights["aircraft"] != WITHOUT_NUMBER)]
    departed = _departures(legs)
    legs = legs.assign(departed=departed, landed=departed + legs["air_time"] * MINUTE)
    legs = legs.assign(leg=legs["carrier"] + legs["flight"].astype(str)).sort_values(["tailnum", "departed", "leg"])
    before = legs.groupby("tailnum")[["landed", "arr_delay"]].shift()
    ground = legs["departed"] - before["landed"]
    is_next = (
        (before["arr_delay"] > LATE_MINUTES)
        & (legs["dep_delay"] > LATE_MINUTES)
        & (ground >= pd.Timedelta(0))
        & (ground <= pd.Timedelta(hours=TURNAROUND_HOURS_MAX))
    )
    legs = legs.assign(
        chain=(~is_next).cumsum(),
        passed_on=legs["dep_delay"].where(is_next, 0).astype("int64"),
        route=legs["origin"] + "-" + legs["dest"],
    )
    found = legs.groupby("chain", as_index=False).agg(
        tailnum=("tailnum", "first"),
        started=("departed", "first"),
        ended=("departed", "last"),
        legs=("leg", "size"),
        delay_minutes=("passed_on", "sum"),
        route=("route", " ".join),
    )
    return found[found["legs"] > 1].drop(columns="chain").reset_index(drop=True)


def _departures(flights: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    return flights["scheduled"] + flights["dep_delay"] * MINUTE
