"""What ListTransactions and DescribeTransactions say."""

import pytest

from txn.kafka_errors import TransactionalIdNotFound
from txn.kafka_listing import ListFilter, described
from txn.kafka_participants import Kind, Participant, Registration
from txn.kafka_states import KafkaTxnState
from txn.kafka_transaction import KafkaTransaction, Producer

NOW = 10_000
IDLE = KafkaTransaction(Producer(7, 5), KafkaTxnState.EMPTY, 1_000, 0)
OPEN = KafkaTransaction(Producer(8, 5), KafkaTxnState.ONGOING, 1_000, 0, started_ms=4_000)
ENDING = KafkaTransaction(
    Producer(9, 0), KafkaTxnState.PREPARE_ABORT, 1_000, 0, started_ms=9_000, markers=Producer(8, 32767)
)
ALL = [IDLE, OPEN, ENDING]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (ListFilter(), ALL),
        (ListFilter(states=["Ongoing", "PrepareAbort"]), [OPEN, ENDING]),
        (ListFilter(states=["Lost"]), []),
        (ListFilter(producer_ids=[7, 9]), [IDLE, ENDING]),
        (ListFilter(longer_than_ms=0), [OPEN, ENDING]),
        (ListFilter(longer_than_ms=999), [OPEN, ENDING]),
        (ListFilter(longer_than_ms=1_000), [OPEN]),
        (ListFilter(longer_than_ms=6_000), []),
        (ListFilter(states=["Ongoing"], producer_ids=[9]), []),
    ],
)
def test_a_list_has_what_was_asked_for(wanted: ListFilter, found: list[KafkaTransaction]) -> None:
    """K32: every condition counts; only an open or ending transaction has an age."""
    assert [record for record in ALL if wanted.matches(record, NOW)] == found


def test_unknown_states_are_told() -> None:
    """E20: the client learns that a filter means nothing here."""
    assert ListFilter(states=["Ongoing", "Lost", "EMPTY"]).unknown_states == ["Lost", "EMPTY"]


def test_a_description_has_who_still_takes_part() -> None:
    """K32: and the producer of the data, as the partitions know it."""
    partition, group = Participant(Kind.PARTITION, "t"), Participant(Kind.GROUP, "g")
    registrations = [Registration("app", each, Producer(8, 32766), "made") for each in (group, partition)]
    told = described("app", ENDING, registrations)
    assert (told.producer, told.state, told.started_ms) == (Producer(8, 32767), KafkaTxnState.PREPARE_ABORT, 9_000)
    assert (told.participants, told.partitions) == ((group, partition), ("t",))
    assert described("app", IDLE, []).started_ms == -1


def test_an_unknown_id_is_told() -> None:
    """E20: by name."""
    with pytest.raises(TransactionalIdNotFound, match="'app'"):
        described("app", None, [])
