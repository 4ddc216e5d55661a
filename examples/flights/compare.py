"""Compares two tables row by row, and describes the differences."""

from typing import Any

import pandas as pd

DIFFERENCES_SHOWN = 5


def differences(what: str, expected: pd.DataFrame, found: pd.DataFrame, key: list[str]) -> list[str]:
    """Return a sentence for each of the first rows that differ, and one that counts the rest; [] if none differ.

    The order of rows does not count. Numbers are compared exactly. Two missing values are equal.
    """
    twice = found[found.duplicated(key)]
    sentences = [f"{what}: {_name(row, key)} is there more than once" for _, row in twice.iterrows()]
    both = expected.merge(found.drop_duplicates(key), on=key, how="outer", suffixes=("", " found"), indicator=True)
    columns = [column for column in expected.columns if column not in key]
    same = both["_merge"] == "both"
    for column in columns:
        right, left = both[column], both[f"{column} found"]
        same &= (left == right) | (left.isna() & right.isna())
    for _, row in both[~same].iterrows():
        sentences.append(f"{what}: {_name(row, key)} {_wrong(row, columns)}")
    more = len(sentences) - DIFFERENCES_SHOWN
    return [*sentences[:DIFFERENCES_SHOWN], *([f"{what}: and {more} more rows"] if more > 0 else [])]


def _wrong(row: "pd.Series[Any]", columns: list[str]) -> str:
    if row["_merge"] == "left_only":
        return "is missing"
    if row["_merge"] == "right_only":
        return "should not be there"
    wrong = []
    for column in columns:
        right, left = row[column], row[f"{column} found"]
        if right != left and not (pd.isna(right) and pd.isna(left)):
            wrong.append(f"{column} {_shown(left)} instead of {_shown(right)}")
    return "has " + ", ".join(wrong)


def _shown(value: Any) -> Any:
    # In a column with missing values, pandas stores whole numbers as floats.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _name(row: "pd.Series[Any]", key: list[str]) -> str:
    return " ".join(
        f"{row[column]:%Y-%m-%d %H:%M}" if isinstance(row[column], pd.Timestamp) else str(row[column]) for column in key
    )
