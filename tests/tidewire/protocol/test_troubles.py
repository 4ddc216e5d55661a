"""What keeps a client's work from going on, as its parts report it."""

from tidewire.protocol.errors import ConnectFailed, ConnectionLost, TidewireError
from tidewire.protocol.refusals import BrokerFull, refusal
from tidewire.protocol.troubles import Troubles
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

LOST = ConnectionLost("gone")
FULL = BrokerFull("the disk is full", pb.ServerError.ProducerBlockedQuotaExceededError)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(troubles: Troubles) -> tuple[TidewireError, float] | None:
    current = troubles.current
    return None if current is None else (current.error, current.since_seconds)


def test_the_part_that_failed_first_is_shown_until_it_goes_on() -> None:
    clock, changes = Clock(), list[object]()
    troubles = Troubles(clock, lambda: changes.append(shown(troubles)))
    assert shown(troubles) is None
    troubles.met("a", LOST)
    clock.now = 1.0
    troubles.met("b", FULL)
    # Nothing else is shown, so nobody is woken.
    assert len(changes) == 1
    clock.now = 2.0
    troubles.met("a", again := ConnectFailed("refused"))
    assert shown(troubles) == (again, 0.0)
    assert [getattr(troubles.of(part), "error", None) for part in "abc"] == [again, FULL, None]
    troubles.over("a")
    assert shown(troubles) == (FULL, 1.0)
    troubles.over("b")
    troubles.over("b")
    assert shown(troubles) is None
    assert changes == [(LOST, 0.0), (again, 0.0), (FULL, 1.0), None]


def test_a_part_that_fails_again_later_has_a_new_beginning() -> None:
    clock = Clock()
    troubles = Troubles(clock)
    troubles.met("a", LOST)
    troubles.over("a")
    clock.now = 5.0
    troubles.met("a", LOST)
    assert shown(troubles) == (LOST, 5.0)


def test_the_whole_knows_the_troubles_of_its_parts_and_not_the_reverse() -> None:
    whole = Troubles(Clock())
    one, other = Troubles(Clock(), whole=whole), Troubles(Clock(), whole=whole)
    one.met("a", LOST)
    other.met("b", FULL)
    assert [each.current and each.current.error for each in (whole, one, other)] == [LOST, LOST, FULL]
    one.over("a")
    assert [each.current and each.current.error for each in (whole, one, other)] == [FULL, None, FULL]


def test_a_full_disk_is_its_own_kind_of_a_busy_broker() -> None:
    for code in (
        pb.ServerError.ProducerBlockedQuotaExceededError,
        pb.ServerError.ProducerBlockedQuotaExceededException,
    ):
        error = refusal(code, "the disk is full. Free space.")
        assert type(error) is BrokerFull
        assert error.retriable
