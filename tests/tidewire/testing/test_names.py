"""The names that tests get."""

from hypothesis import given
from hypothesis import strategies as st

from broker.kafka.topics import _NAME, NAME_LENGTH_MAX
from broker.names import TopicName
from tidewire.testing.names import WORDS_LENGTH_MAX, unique_name

TESTS = st.text() | st.from_regex(r"test_\w+\[[-.\w]*(partition[-_][0-9]+)?\]", fullmatch=True)
NUMBERS = st.integers(1, 10**9)


@given(TESTS, NUMBERS, st.sampled_from(["", "-orders", ".dead_letters"]))
def test_kafka_and_pulsar_accept_a_name_also_as_a_prefix(test: str, number: int, more: str) -> None:
    """As a topic it is no partition of another one, and as a namespace it is legal too."""
    name = unique_name(test, number) + more
    assert _NAME.fullmatch(name)
    assert len(name) <= NAME_LENGTH_MAX / 2
    topic = TopicName.parse(f"persistent://public/default/{name}")
    assert topic.partition_index is None
    assert str(TopicName.parse(f"topic://public/{name}/orders")) == f"topic://public/{name}/orders"


@given(st.tuples(TESTS, NUMBERS), st.tuples(TESTS, NUMBERS))
def test_two_tests_never_have_the_same_name(one: tuple[str, int], other: tuple[str, int]) -> None:
    """The numbers tell them apart, whatever the tests are called."""
    assert (unique_name(*one) == unique_name(*other)) <= (one[1] == other[1])


def test_a_name_tells_whose_it_is() -> None:
    assert unique_name("test_orders[fast-1]", 7) == "test-orders-fast-1-t7"
    assert unique_name("…", 1) == "test-t1"
    assert unique_name("x" * 1_000, 1) == "x" * WORDS_LENGTH_MAX + "-t1"
