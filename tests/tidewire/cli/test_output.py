"""Tables and lists for people."""

from tidewire.cli.output import fields, moment, table


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_stand_right() -> None:
    """A character of two columns, such as of Chinese, counts as two."""
    rows = [("航班", 1234567, None), ("a", 7, "x")]
    assert table(("name", "backlog", "who"), rows) == ("name    backlog  who\n航班  1,234,567  -\na             7  x")


def test_a_table_without_rows_is_its_heading() -> None:
    assert table(("name", "backlog"), []) == "name  backlog"


def test_facts_stand_under_each_other() -> None:
    assert fields([("state", "open"), ("times out", None)]) == "state      open\ntimes out  -"


def test_no_time_is_no_moment() -> None:
    assert moment(1_357_613_700_999) == "2013-01-08T02:55:00Z"
    assert moment(0) is None
    assert moment(None) is None
