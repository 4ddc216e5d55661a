"""The correct answer, and how another one differs from it."""

import pandas as pd
import pytest

from tidewire.cli.demo.data import find_data, read_flights
from tidewire.cli.demo.expected import (
    COLUMNS,
    COUNTS,
    DIFFERENCES_SHOWN,
    expected_kinds,
    expected_windows,
    kinds_differ,
    read_weather,
    windows_differ,
)

NOON = pd.Timestamp("2013-01-01T12:00Z")


def flights_of(*rows: tuple[str, str, float | None, float | None]) -> pd.DataFrame:
    """Make flights from origin, scheduled time, delay and time in the air."""
    frame = pd.DataFrame(rows, columns=["origin", "time", "dep_delay", "air_time"]).astype(
        {"dep_delay": float, "air_time": float}
    )
    return frame.assign(scheduled=pd.to_datetime("2013-01-01T" + frame["time"], utc=True))


def weather_of(*rows: tuple[str, int, float | None]) -> pd.DataFrame:
    """Make weather from origin, hours after noon and temperature."""
    return pd.DataFrame(
        [(origin, NOON.timestamp() + hours * 3600, temp, 5.0, 0.0, 10.0) for origin, hours, temp in rows],
        columns=["origin", "window", "temp", "wind_speed", "precip", "visib"],
    ).astype({"window": "int64", "temp": float})


def rows_of(windows: pd.DataFrame) -> list[tuple[object, ...]]:
    return [
        (row["origin"], (row["window"] - NOON.timestamp()) / 3600, *(row[name] for name in COUNTS))
        for _, row in windows.iterrows()
    ]


def test_departures_are_counted_in_the_hour_in_which_they_happened() -> None:
    windows = expected_windows(
        flights_of(
            ("JFK", "12:00", 0, 60),
            ("JFK", "12:40", 15, 60),
            ("JFK", "12:40", 16, None),
            ("JFK", "12:40", 20, 60),
            ("JFK", "13:05", -6, 60),
            ("JFK", "13:59", None, None),
            ("LGA", "12:59", 1, 60),
        ),
        weather_of(("JFK", 0, 32.0), ("EWR", 1, 33.0)),
    )
    assert list(windows.columns) == COLUMNS
    assert rows_of(windows) == [("JFK", 0, 4, 25, 1), ("JFK", 1, 1, 20, 1), ("LGA", 1, 1, 1, 0)]
    assert list(windows["has_weather"]) == [True, False, False]
    assert windows["temp"][0] == 32.0


def test_kinds_are_counted() -> None:
    flights = flights_of(("JFK", "12:00", 1, 60), ("JFK", "12:00", 1, None), ("JFK", "12:00", None, None))
    assert expected_kinds(flights) == {"departed": 2, "landed": 1, "cancelled": 1}
    assert kinds_differ({"departed": 2, "landed": 1}, {"landed": 1, "departed": 2}) == []
    assert kinds_differ({"departed": 2}, {"departed": 3, "odd": 1}) == [
        "3 'departed' events instead of 2",
        "1 'odd' events instead of 0",
    ]


@pytest.fixture(scope="module")
def answer() -> pd.DataFrame:
    """Return the answer for the first day."""
    source = find_data()
    return expected_windows(read_flights(source, 1), read_weather(source))


def test_an_answer_does_not_differ_from_itself_in_any_order(answer: pd.DataFrame) -> None:
    assert len(answer) > 40
    assert answer["has_weather"].sum() > 40
    assert windows_differ(answer, answer.sample(frac=1, random_state=1)) == []


def test_any_other_value_is_a_difference(answer: pd.DataFrame) -> None:
    row = 3
    for column in COLUMNS[2:]:
        changed = answer.copy()
        value = changed[column][row]
        changed.loc[row, column] = not value if column == "has_weather" else value + 0.25 if value % 1 else value + 1
        (sentence,) = windows_differ(answer, changed)
        assert f"{column} is" in sentence
        assert "the window of EWR from 2013-01-01" in sentence
    for lost in ("temp", "visib"):
        changed = answer.copy()
        changed.loc[row, lost] = float("nan")
        (sentence,) = windows_differ(answer, changed)
        assert f"{lost} is nan" in sentence


def test_a_missing_a_further_and_a_double_window_are_differences(answer: pd.DataFrame) -> None:
    (missing,) = windows_differ(answer, answer.drop(index=5))
    assert missing.endswith("is missing")
    (further,) = windows_differ(answer.drop(index=5), answer)
    assert further.endswith("should not be there")
    (double,) = windows_differ(answer, pd.concat([answer, answer[5:6]]))
    assert double.endswith("is in the answer more than once")
    assert len(windows_differ(answer, answer[:0])) == DIFFERENCES_SHOWN + 1


def test_the_last_sentence_says_how_many_more_there_are(answer: pd.DataFrame) -> None:
    assert windows_differ(answer, answer[:0])[-1] == f"and {len(answer) - DIFFERENCES_SHOWN} more windows"
