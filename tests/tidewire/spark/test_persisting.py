from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest

from tidewire.protocol.backoff import DELAY_SECONDS_MIN
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation, TidewireError
from tidewire.protocol.refusals import Refused, refusal
from tidewire.spark import persisting
from tidewire.spark.persisting import passes, persistently
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only its own sleep moves."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(persisting, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


def failing(error: TidewireError, times: int) -> Callable[[], int]:
    """Fail this many times, then return how often it was called before."""
    calls = count()

    def work() -> int:
        number = next(calls)
        if number < times:
            raise error
        return number

    return work


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (ConnectionLost("x"), True),
        (OperationTimedOut("x"), True),
        (ConnectFailed("x"), True),
        (refusal(pb.ServiceNotReady, "no"), True),
        (refusal(pb.TransactionCoordinatorNotFound, "no"), True),
        (refusal(pb.ConsumerBusy, "no"), True),
        # A disk that is full, and a file that could not be written: space comes back, the topic is opened again.
        (refusal(pb.ProducerBlockedQuotaExceededError, "no"), True),
        (refusal(pb.PersistenceError, "no"), True),
        (refusal(pb.InvalidTxnStatus, "no"), False),
        (refusal(pb.TopicNotFound, "no"), False),
        (ProtocolViolation("x"), False),
    ],
)
def test_what_may_pass_is_tried_again_and_all_else_is_told_at_once(
    clock: list[float], error: TidewireError, may_pass: bool
) -> None:
    assert passes(error) == may_pass
    if may_pass:
        assert persistently(failing(error, 3), 30) == 3
        # Three delays that double, each shortened by at most its half, so that tasks do not come back together.
        assert 7 * DELAY_SECONDS_MIN / 2 <= clock[0] <= 7 * DELAY_SECONDS_MIN
    else:
        with pytest.raises(type(error)):
            persistently(failing(error, 1), 30)
        assert clock == [0.0]


def test_when_the_time_is_over_the_last_error_is_told(clock: list[float]) -> None:
    with pytest.raises(ConnectionLost):
        persistently(failing(ConnectionLost("x"), 1000), 30)
    assert clock[0] == pytest.approx(30)


def test_a_caller_may_wait_for_less(clock: list[float]) -> None:
    with pytest.raises(ConnectionLost):
        persistently(failing(ConnectionLost("x"), 1), 30, lambda error: isinstance(error, Refused))
    assert clock == [0.0]


def test_what_a_stopped_broker_did_not_answer_in_all_the_time_is_tried_again(clock: list[float]) -> None:
    """C21: its kernel keeps the connections. Meanwhile another broker has taken over what it led."""
    calls = count()

    def work() -> int:
        number = next(calls)
        if number == 0:
            clock[0] += 30
            raise OperationTimedOut("broker:6650 did not send its answer to END_TXN within 30 s")
        return number

    assert persistently(work, 30) == 1


def test_brokers_that_never_answer_are_not_asked_forever(clock: list[float]) -> None:
    def work() -> None:
        clock[0] += 30
        raise OperationTimedOut("x")

    with pytest.raises(OperationTimedOut):
        persistently(work, 30)
    assert clock[0] <= 3 * 30
