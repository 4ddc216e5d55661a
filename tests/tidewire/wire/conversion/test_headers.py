"""Headers as properties, and back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tidewire.wire.conversion.drawn import headers, texts
from tidewire.wire.conversion.headers import ORDERING_KEY, headers_of, properties_of
from tidewire.wire.kafka.records import Header

ESCAPES = [
    # The headers, and the properties for which they stand.
    ([(b"a", b"x"), (b"b", b"")], [("a", "x"), ("b", "")]),
    ([(b"", b"x")], [("", "x")]),
    ([("é".encode(), "ü".encode())], [("é", "ü")]),
    ([(b"a", None)], [("kafka:null:a", "")]),
    ([(b"a", b"\0\xff")], [("kafka:base64:a", "AP8=")]),
    ([(b"\xff", b"x")], [("kafka:name64:/w==", "x")]),
    ([(b"\xff", None)], [("kafka:name64,null:/w==", "")]),
    ([(b"a", b"x"), (b"a", b"x"), (b"a", b"\xff")], [("a", "x"), ("kafka:2:a", "x"), ("kafka:3,base64:a", "/w==")]),
    ([(b"a", None), (b"a", None)], [("kafka:null:a", ""), ("kafka:2,null:a", "")]),
    ([(b"\xff", b""), (b"\xff", b"\xff")], [("kafka:name64:/w==", ""), ("kafka:2,name64,base64:/w==", "/w==")]),
    # A header whose own name has the form of an escape.
    ([(b"kafka:null:a", b"")], [("kafka::kafka:null:a", "")]),
    ([(b"kafka::a", b"x")], [("kafka::kafka::a", "x")]),
    # Names that have not.
    (
        [(b"kafka:", b"x"), (b"kafka:a", b"x"), (b"kafka:1:a", b"x")],
        [("kafka:", "x"), ("kafka:a", "x"), ("kafka:1:a", "x")],
    ),
    ([(b"kafka:base64,:a", b"x")], [("kafka:base64,:a", "x")]),
    ([(b"kafka:2,:a", b"x")], [("kafka:2,:a", "x")]),
    ([(b"kafka:name64,:YQ==", b"x")], [("kafka:name64,:YQ==", "x")]),
    ([(b"kafka:null,2:a", b"x")], [("kafka:null,2:a", "x")]),
    ([(b"kafka:2name64:a", b"x")], [("kafka:2name64:a", "x")]),
    ([(b"kafka:2\n:a", b"x")], [("kafka:2\n:a", "x")]),
]


@pytest.mark.parametrize(("given_headers", "properties"), ESCAPES)
def test_a_header_that_is_no_text_is_escaped(
    given_headers: list[tuple[bytes, bytes | None]], properties: list[tuple[str, str]]
) -> None:
    """K42: the form is documented, because applications of Pulsar meet it."""
    some = tuple(Header(*each) for each in given_headers)
    assert properties_of(some) == (properties, None)
    assert headers_of(properties, None) == some


@pytest.mark.parametrize(
    ("name", "value"),
    [("kafka:base64:a", "?"), ("kafka:base64:a", "é"), ("kafka:name64:?", "x"), ("kafka:base64:a", "AP8")],
)
def test_what_is_no_base64_is_no_escape(name: str, value: str) -> None:
    """K42: so such a property reaches Kafka as it is."""
    assert headers_of([(name, value)], None) == ((name.encode(), value.encode()),)


def key_first(some: tuple[Header, ...]) -> tuple[Header, ...]:
    """The headers as they come back: what became the ordering key stands first."""
    ordering_key = properties_of(some).ordering_key
    if ordering_key is None:
        return some
    place = [header.key for header in some].index(ORDERING_KEY)
    return (Header(ORDERING_KEY, ordering_key), *some[:place], *some[place + 1 :])


@given(headers)
def test_headers_come_back(some: tuple[Header, ...]) -> None:
    """K42: repeated, binary and null ones, in their order."""
    assert headers_of(*properties_of(some)) == key_first(some)


@given(headers, st.randoms(use_true_random=False))
def test_headers_survive_a_client_that_keeps_properties_in_a_map(
    some: tuple[Header, ...], chance: random.Random
) -> None:
    """K42: each name is there once, and headers of one name keep their order when others lose theirs."""
    properties, ordering_key = properties_of(some)
    assert len(dict(properties)) == len(properties)
    chance.shuffle(properties)
    found = headers_of(properties, ordering_key)
    for name in {header.key for header in (*some, *found)}:
        assert [each for each in found if each.key == name] == [each for each in some if each.key == name]


@given(st.dictionaries(texts, texts, max_size=6), st.none() | st.binary(max_size=2))
def test_any_properties_are_headers_that_come_back(properties: dict[str, str], ordering_key: bytes | None) -> None:
    """K42: once they are headers they stay the same, also those that a Pulsar application escaped."""
    found = headers_of(properties.items(), ordering_key)
    assert headers_of(*properties_of(found)) == key_first(found)
    # A name without the form of an escape, or of the ordering key, is the name of its property, too.
    if not any(name.startswith(("kafka:", "pulsar:")) for name in properties):
        assert properties_of(found) == (list(properties.items()), ordering_key)


def test_a_pulsar_application_may_send_headers_that_are_no_text() -> None:
    """K42: by the documented names. A number without those below it only orders."""
    properties = [("kafka:3:a", "c"), ("kafka:base64:a", "YQ=="), ("b", "x"), ("kafka:2,null:a", "")]
    assert headers_of(properties, None) == ((b"a", b"a"), (b"a", None), (b"b", b"x"), (b"a", b"c"))


@pytest.mark.parametrize(
    ("some", "found"),
    [
        ([(b"a", b""), (ORDERING_KEY, b"\xff")], ([("a", "")], b"\xff")),
        ([(ORDERING_KEY, b"")], ([], b"")),
        ([(ORDERING_KEY, None)], ([("kafka:null:pulsar:ordering_key", "")], None)),
        ([(ORDERING_KEY, b"1"), (ORDERING_KEY, b"2")], ([("kafka:2:pulsar:ordering_key", "2")], b"1")),
    ],
)
def test_the_first_header_of_its_name_is_the_ordering_key(
    some: list[tuple[bytes, bytes | None]], found: tuple[list[tuple[str, str]], bytes | None]
) -> None:
    """K42: Kafka has no field for it."""
    assert properties_of([Header(*each) for each in some]) == found


def test_text_that_is_not_utf8_stays_bytes() -> None:
    """K42: protobuf returns it as bytes."""
    assert headers_of([(b"\xff", b"\xfe"), ("a", b"\xfd")], None) == ((b"\xff", b"\xfe"), (b"a", b"\xfd"))
