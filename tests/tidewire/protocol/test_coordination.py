import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.coordination import Ending, leaders_of, transaction_of
from tidewire.protocol.errors import (
    ConnectFailed,
    ConnectionLost,
    OperationTimedOut,
    OutcomeUnknown,
    ProtocolViolation,
    TidewireError,
)
from tidewire.protocol.refusals import BrokerBusy, Refused, TransactionConflict, TransactionNotFound, refusal
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

BUSY = refusal(pb.ServerError.ServiceNotReady, "starting")
CONFLICT = refusal(pb.ServerError.InvalidTxnStatus, "aborted")
NOT_FOUND = refusal(pb.ServerError.TransactionNotFound, "never heard of it")
UNDER_WAY = refusal(pb.ServerError.UnknownError, "mismatch")
LOST = ConnectionLost("gone")
UNREACHABLE = ConnectFailed("nobody")


def ended_by(ending: Ending, *errors: TidewireError) -> None:
    for error in errors:
        ending.ask(1)
        ending.failed(error)


def test_a_coordinator_that_nobody_leads_is_no_leader() -> None:
    leaders = [pb.TcAssignment(tc_id=0, broker_service_url="pulsar://a:1"), pb.TcAssignment(tc_id=1)]
    update = commands.watch_tc_assignments_update(1, 2, leaders).watch_tc_assignments_update
    assert leaders_of(update) == {0: "pulsar://a:1"}


def test_an_id_names_the_coordinator_that_gave_it_out() -> None:
    answer = commands.new_txn_response(1, (3, 1 << 62)).new_txn_response
    assert transaction_of(answer, 3) == (3, 1 << 62)
    with pytest.raises(ProtocolViolation, match="coordinator 2 answered with an id of coordinator 3"):
        transaction_of(answer, 2)


@pytest.mark.parametrize("commit", [True, False])
def test_it_asks_with_the_same_id_each_time(*, commit: bool) -> None:
    ending = Ending((1, 2), commit=commit)
    for request_id in (7, 8):
        asked = ending.ask(request_id).end_txn
        assert (asked.request_id, asked.txnid_most_bits, asked.txnid_least_bits) == (request_id, 1, 2)
        assert (asked.txn_action == pb.TxnAction.COMMIT) == commit
        ending.failed(LOST)


@pytest.mark.parametrize("error", [CONFLICT, NOT_FOUND, UNDER_WAY])
def test_the_first_refusal_is_final(error: Refused) -> None:
    with pytest.raises(type(error)):
        ended_by(Ending((1, 2), commit=True), error)


def test_a_transaction_that_is_not_found_after_a_lost_answer_may_have_ended_either_way() -> None:
    """T2: the earlier request may have succeeded, and its traces may be gone."""
    with pytest.raises(OutcomeUnknown, match=r"^the commit of transaction \(1, 2\) got no answer in time"):
        ended_by(Ending((1, 2), commit=True), LOST, NOT_FOUND)
    # It was never asked for before: the first answer stands.
    ending = Ending((1, 2), commit=True)
    ending.failed(UNREACHABLE)
    with pytest.raises(TransactionNotFound):
        ended_by(ending, NOT_FOUND)


def test_what_is_under_way_is_asked_for_again_and_a_conflict_is_told() -> None:
    with pytest.raises(TransactionConflict):
        ended_by(Ending((1, 2), commit=True), LOST, UNDER_WAY, UNDER_WAY, CONFLICT)


@given(st.lists(st.sampled_from([LOST, UNREACHABLE, BUSY, UNDER_WAY, NOT_FOUND, CONFLICT]), max_size=6), st.data())
def test_unknown_is_never_told_as_not_done(errors: list[TidewireError], data: st.DataObject) -> None:
    """Invariant: after a request that may have succeeded, only a conflict proves the outcome."""
    ending = Ending((1, 2), commit=True)
    may_be_done = False
    for error in errors:
        # Where there is no connection, nothing is asked.
        asks = error is not UNREACHABLE
        if asks:
            ending.ask(1)
        try:
            ending.failed(error)
        except OutcomeUnknown:
            assert may_be_done
            return
        except TransactionConflict:
            return
        except Refused:
            assert not may_be_done
            return
        may_be_done |= asks
        assert ending.last is error
    assert isinstance(ending.out_of_time(5.0), OutcomeUnknown if may_be_done else OperationTimedOut)


def test_a_busy_broker_is_a_passing_failure() -> None:
    assert isinstance(BUSY, BrokerBusy)
    ended_by(Ending((1, 2), commit=False), BUSY, BUSY)
