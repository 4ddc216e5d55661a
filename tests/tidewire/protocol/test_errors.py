import pickle

import pytest

from tidewire.client import errors as client_errors
from tidewire.client.errors import MessageCorrupted, SendUnanswered
from tidewire.protocol import errors, refusals
from tidewire.protocol.errors import ConnectionLost, InvalidName, TidewireError, fresh, is_retriable
from tidewire.protocol.positions import MessageId
from tidewire.protocol.refusals import (
    BrokerBusy,
    NotAllowed,
    Refused,
    SubscriptionBusy,
    TopicTerminated,
    TransactionConflict,
    refusal,
)
from tidewire.spark import errors as spark_errors
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


@pytest.mark.parametrize(
    ("code", "expected", "retriable"),
    [
        (pb.ServerError.ServiceNotReady, BrokerBusy, True),
        (pb.ServerError.MetadataError, BrokerBusy, True),
        (pb.ServerError.TransactionCoordinatorNotFound, BrokerBusy, True),
        (pb.ServerError.ConsumerBusy, SubscriptionBusy, True),
        (pb.ServerError.InvalidTxnStatus, TransactionConflict, True),
        (pb.ServerError.TransactionConflict, TransactionConflict, True),
        (pb.ServerError.TopicTerminatedError, TopicTerminated, False),
        (pb.ServerError.NotAllowedError, NotAllowed, False),
        (pb.ServerError.UnknownError, Refused, False),
        (77, Refused, False),
    ],
)
def test_a_code_becomes_its_class(code: int, expected: type[Refused], *, retriable: bool) -> None:
    error = refusal(code, "because")
    assert type(error) is expected
    assert error.retriable is retriable
    assert (error.code, error.reason) == (code, "because")


def test_every_code_of_the_protocol_becomes_some_refusal() -> None:
    for code in pb.ServerError.values():
        error = refusal(code, "because")
        assert str(error) == f"because [{pb.ServerError.Name(code)}]"


def test_a_send_refused_as_not_allowed_is_a_conflict_only_in_a_transaction() -> None:
    """A broker refuses a send of a finished transaction with this code; a new transaction can succeed."""
    assert type(refusal(pb.ServerError.NotAllowedError, "", of_transactional_send=True)) is TransactionConflict
    assert type(refusal(pb.ServerError.NotAllowedError, "")) is NotAllowed


def test_retriable_is_said_by_the_type_and_of_groups_by_all_members() -> None:
    assert is_retriable(ConnectionLost("x"))
    assert is_retriable(SendUnanswered("x"))
    assert not is_retriable(TidewireError("x"))
    assert not is_retriable(ValueError("x"))
    assert is_retriable(ExceptionGroup("g", [ConnectionLost("x"), ExceptionGroup("h", [SendUnanswered("y")])]))
    assert not is_retriable(ExceptionGroup("g", [ConnectionLost("x"), ValueError("y")]))


def test_wrong_names_are_value_errors_too() -> None:
    assert issubclass(InvalidName, ValueError)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionLost("gone"),
        refusal(pb.ServerError.TopicNotFound, "no topic"),
        MessageCorrupted("bad", MessageId(1, 2, 3)),
    ],
)
def test_an_error_can_be_renewed_and_sent_to_another_process(error: TidewireError) -> None:
    error.__cause__ = OSError("below")
    for copied in (fresh(error), pickle.loads(pickle.dumps(error))):
        assert type(copied) is type(error)
        assert str(copied) == str(error)
        assert copied.__dict__ == error.__dict__
    renewed = fresh(error)
    assert renewed is not error
    assert renewed.__cause__ is error.__cause__
    assert renewed.__traceback__ is None


def test_the_whole_tree_says_whether_it_is_retriable() -> None:
    modules = (errors, refusals, client_errors, spark_errors)
    named = [value for module in modules for value in vars(module).values()]
    classes = {value for value in named if isinstance(value, type) and issubclass(value, TidewireError)}
    assert len(classes) >= 35
    for kind in classes:
        assert isinstance(kind.retriable, bool)
        assert kind.__doc__
