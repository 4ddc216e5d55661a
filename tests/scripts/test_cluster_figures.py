"""The table of a benchmark: medians, spreads and targets."""

import pytest

from scripts.cluster_figures import Figures, number, spread


def test_a_row_has_its_median_and_its_spread() -> None:
    """One value has no spread."""
    assert spread([3.0]) == "3.00"
    assert spread([3.0, 1.0, 2.5]) == "2.50 (1.00 to 3.00, 3 values)"


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.000"), (0.0412, "0.0412"), (2.0, "2.00"), (41.26, "41.3"), (10240.0, "10,240")]
)
def test_a_number_has_three_digits(value: float, shown: str) -> None:
    """And never an exponent."""
    assert number(value) == shown


def test_the_median_decides_about_the_target() -> None:
    """A single slow repeat misses nothing."""
    figures = Figures()
    figures.add("met", "s", 1.0, 9.0, 2.0, at_most=3)
    figures.add("missed", "ms", 101.0, at_most=100)
    figures.add("open", "us", 7.0)
    assert figures.missed() == ["missed"]
    assert figures.lines() == [
        "met     2.00 (1.00 to 9.00, 3 values) s; target at most 3: met",
        "missed  101 ms; target at most 100: MISSED",
        "open    7.00 us",
    ]
    assert figures.plain()["met"] == {"unit": "s", "at_most": 3, "values": [1.0, 9.0, 2.0]}


def test_a_row_keeps_its_unit_and_target() -> None:
    """Figures of two kinds do not mix."""
    figures = Figures()
    figures.add("row", "s", 1.0)
    with pytest.raises(AssertionError, match="one unit"):
        figures.add("row", "ms", 1.0)
