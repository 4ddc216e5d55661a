"""Records as JSON lines: complete, one line each, and unambiguous."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.readable import (
    PIECE_BYTES,
    change_lines,
    failure_line,
    hit_line,
    line,
    listing_lines,
    log_record_fields,
    pieces,
    record_line,
)
from storage.metadata.records import Answered, TakeOver
from storage.metadata.store import Change, IndexEntry, IndexHit, Record


def test_all_of_a_record_is_told() -> None:
    record = Record("/a/ü", b'{"state": "OPEN"}', 7, (IndexEntry("i", "k"), IndexEntry("i", "\0")), "p", 3)
    assert json.loads(record_line(record)) == {
        "key": "/a/ü",
        "version": 7,
        "value": {"state": "OPEN"},
        "indexes": [{"name": "i", "key": "k"}, {"name": "i", "key": "\0"}],
        "partition_key": "p",
        "session": 3,
    }
    plain = json.loads(record_line(Record("/a", b"1", 7)))
    assert (plain["indexes"], plain["partition_key"], plain["session"]) == ([], None, None)


@pytest.mark.parametrize(
    "value",
    [b"0", b"null", b'"text"', b"123456789012345678901234567890", b"1e300", b'{\r\n "a": [1,\n\n 2]\n}\n', b'"\\n"'],
)
def test_json_keeps_every_character_that_counts(value: bytes) -> None:
    said = record_line(Record("/a", value, 1))
    assert said.count(b"\n") == 1
    assert json.loads(said, parse_int=str, parse_float=str)["value"] == json.loads(
        value, parse_int=str, parse_float=str
    )


@pytest.mark.parametrize("value", [b"", b"plain", b"{", b"\xff", b"NaN", b'"\xed\xa0\x80"', b"[" * 5000, b"1 2"])
def test_what_is_no_json_stands_in_base64(value: bytes) -> None:
    told = json.loads(record_line(Record("/a", value, 1)))
    assert "value" not in told
    assert base64.b64decode(told["value_base64"]) == value


@given(st.binary(max_size=50) | st.text(max_size=20).map(str.encode) | st.from_regex(r'\A["{\[\d][\s\S]{0,5}'))
def test_any_value_makes_one_line_that_tells_it(value: bytes | str) -> None:
    value = value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
    said = record_line(Record("/a", value, 1))
    assert said.endswith(b"\n")
    assert said.count(b"\n") == 1
    told = json.loads(said)
    if "value" in told:
        assert told["value"] == json.loads(value)
    else:
        assert base64.b64decode(told["value_base64"]) == value


def test_an_index_hit_says_by_what_it_was_found() -> None:
    told = json.loads(hit_line(IndexHit("k", Record("/a", b"", 1, (IndexEntry("i", "k"),)))))
    assert (told["index_key"], told["key"]) == ("k", "/a")


def test_a_listing_says_when_it_is_whole() -> None:
    """M14: the existing records, then the revision from which changes follow, even if there are none."""
    lines = [json.loads(each) for each in listing_lines(Change(9, (Record("/a", b"1", 3), Record("/b", b"2", 9))))]
    assert [(each["event"], each.get("key")) for each in lines] == [
        ("present", "/a"),
        ("present", "/b"),
        ("listed", None),
    ]
    assert lines[-1]["revision"] == 9
    assert [json.loads(each) for each in listing_lines(Change(0))] == [{"event": "listed", "revision": 0}]


def test_a_change_is_told_in_key_order_and_says_when_it_is_whole() -> None:
    """R14: a reader of lines can tell which changes belong to one step."""
    change = Change(9, (Record("/a", b"1", 9), Record("/c", b"2", 8)), ("/b", "/d"))
    lines = [json.loads(each) for each in change_lines(change)]
    assert [(each["event"], each["key"], each["revision"], each.get("more", False)) for each in lines] == [
        ("written", "/a", 9, True),
        ("deleted", "/b", 9, True),
        ("written", "/c", 9, True),
        ("deleted", "/d", 9, False),
    ]


def test_a_record_of_the_log_is_told_by_its_fields() -> None:
    """R24: values inside a record of the log become plain fields too."""
    answered = Answered(WriteId(2, 5, 4), Made(9, (Run(1, 3),)))
    assert json.loads(line(log_record_fields(answered))) == {
        "type": "answered",
        "session": 2,
        "number": 5,
        "answered_below": 4,
        "revision": 9,
        "numbers": [{"first": 1, "length": 3}],
    }
    told = json.loads(line(log_record_fields(TakeOver(9, 4, "b"))))
    assert told == {"type": "take_over", "revision": 9, "epoch": 4, "broker": "b", "address": None}


def test_a_failure_looks_like_nothing_else() -> None:
    assert json.loads(failure_line('it "broke"')) == {"failed": 'it "broke"'}


def test_lines_travel_in_pieces_of_bounded_size() -> None:
    lines = [b"x" * 1000 + b"\n"] * 200
    joined = list(pieces(lines))
    assert b"".join(joined) == b"".join(lines)
    assert all(PIECE_BYTES <= len(piece) < PIECE_BYTES + 1001 for piece in joined[:-1])
    assert list(pieces([])) == []
