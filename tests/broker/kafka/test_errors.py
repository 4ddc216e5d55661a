"""The table that maps errors to Kafka's codes."""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

import pytest

import broker
import dispatch
import storage
import txn
from broker.errors import StartError
from broker.kafka.errors import code_of
from storage.errors import ExpectedError
from tidewire.wire.kafka.error_codes import ErrorCode

REPEATED: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Codes at which Kafka's clients repeat a request: those of its protocol guide that are retriable."""

NOT_ASKED: Final = frozenset(
    {
        # Of Pulsar's sends, subscriptions and layouts.
        "ClosedMeanwhile",
        "IntentOpen",
        "LayoutUnreadable",
        "OpenSendsFull",
        "PeerSilent",
        "PendingAcksFull",
        "SegmentBusy",
        "SendInDoubt",
        "PendingAcksDiscarded",
        "SubscriptionClosed",
        "SubscriptionEnding",
        # Of cursors, which groups do not have.
        "CursorClosed",
        "CursorFailed",
        "CursorLost",
        # Of links between brokers.
        "LinkError",
        "LinkLost",
        "LinkRefused",
        "OtherProtocol",
        # Of groups, which answer it themselves.
        "Refused",
    }
)
"""Retriable errors that no request of a Kafka client meets."""


def _errors(base: type[ExpectedError]) -> Iterator[type[ExpectedError]]:
    for error in base.__subclasses__():
        yield error
        yield from _errors(error)


def _raised() -> set[type[ExpectedError]]:
    for room in (broker, dispatch, storage, txn):
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    return {error for error in _errors(ExpectedError) if not issubclass(error, StartError)}


def test_a_client_repeats_what_may_succeed_later() -> None:
    """With a permanent code, a retriable error would fail a request that could succeed a moment later."""
    given_up = {
        error.__name__ for error in _raised() if error.retriable and code_of(error.__new__(error)) not in REPEATED
    }
    assert given_up <= NOT_ASKED, given_up - NOT_ASKED


def test_a_defect_has_no_code() -> None:
    """It ends the connection and is logged, instead of looking like an answer."""
    with pytest.raises(KeyError):
        code_of(KeyError("defect"))
