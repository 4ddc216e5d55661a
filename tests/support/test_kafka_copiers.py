"""What copiers write says which record it is a copy of, and whether it may be shown. Their deaths can be repeated."""

from random import Random

from tests.support.history import Place
from tests.support.kafka_copiers import steps
from tests.support.kafka_copiers.copying import Record, copies_in, copy_of
from tests.support.kafka_copiers.moments import broker_death, copier_death
from tests.support.kafka_copiers.orders import Orders
from tests.support.kafka_copiers.steps import Death
from tests.support.row_copies import Copy

RECORD = Record(3, 41, b"key", b"a b c")


def found(*values: bytes) -> tuple[list[Copy], list[str]]:
    """Read these values as copies, with the complaints."""
    complaints: list[str] = []
    records = [Record(0, offset, b"key", value) for offset, value in enumerate(values)]
    return list(copies_in(records, complaints)), complaints


def test_a_copy_says_what_it_is_a_copy_of() -> None:
    copies, complaints = found(copy_of(RECORD, is_doomed=False))
    assert copies == [Copy("partition 0 at 0", Place(3, 3, 41, 0), "key", b"a b c")]
    assert complaints == []


def test_a_copy_that_its_copier_aborted_must_not_be_shown() -> None:
    copies, complaints = found(copy_of(RECORD, is_doomed=True))
    assert len(copies) == 1
    assert complaints == ["b'doomed 3 41 c b a' is shown in partition 0 at 0, and its copier aborted it"]


def test_what_nobody_made_is_no_copy() -> None:
    copies, complaints = found(b"kept 1 2", b"other 1 2 x")
    assert copies == []
    assert [complaint.partition(" in ")[0] for complaint in complaints] == [
        "nobody made b'kept 1 2'",
        "nobody made b'other 1 2 x'",
    ]


def test_orders_are_read_as_they_are_given() -> None:
    orders = Orders(
        "aiokafka", "a:1", "s", "t", 4, "g", None, "range", "n", "7/n", Death("send", 3, 0.5, is_pause=True)
    )
    assert Orders.loads(orders.dumps()) == orders


def test_deaths_are_repeated_by_their_seed_and_meet_every_step() -> None:
    drawn = [copier_death(Random(seed)) for seed in range(200)]
    assert drawn == [copier_death(Random(seed)) for seed in range(200)]
    assert {death.step for death in drawn} == set(steps.STEPS)
    assert {death.is_pause for death in drawn} == {death.delay_seconds == 0 for death in drawn} == {True, False}
    ends = [broker_death(Random(seed)) for seed in range(200)]
    assert ends == [broker_death(Random(seed)) for seed in range(200)]
    assert {(end.death is None, end.is_stop) for end in ends} == {(True, True), (True, False), (False, False)}
