"""The one decision about a batch: which of its transactions are committed.

The planner's process makes it when Spark says which tasks count. It is durable when `commit` returns. A group is one
batch of an application. The broker decides each group once, and repeats the decision to later requests. So it is safe
to ask again after a lost answer, even much later.
"""

import logging
from dataclasses import replace
from typing import Final, NamedTuple

from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import TidewireError
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers
from tidewire.spark.checkpoints import plan_of
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.errors import CommitFailed
from tidewire.spark.persisting import persistently
from tidewire.spark.write_options import WriteOptions
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

ABORT_SECONDS_MAX: Final = 5.0
"""The time limit for each request of an abort. Timeouts abort what the requests did not."""

_log: Final = logging.getLogger(__name__)


class CommitGroup(NamedTuple):
    """One batch of an application."""

    application: str
    batch: int
    once: bool = False
    """Whether it is the application's only batch."""
    origin: str | None = None
    """Who numbers the batches, if that is not the application: a query's id."""

    def __str__(self) -> str:
        return "the rows" if self.once else f"batch {self.batch} of {self.application!r}"

    @property
    def on_the_wire(self) -> pb.TransactionGroup:
        """The group as the wire has it."""
        return pb.TransactionGroup(application=self.application, batch=self.batch, once=self.once, origin=self.origin)


def commit(options: WriteOptions, group: CommitGroup, winners: list[TransactionId], *, rows: str | None = None) -> None:
    """Commit these transactions and no others of the group, unless the batch is already committed.

    Args:
        options: where brokers are.
        group: the batch.
        winners: the transactions that count.
        rows: the fingerprint of the batch's rows (`fingerprint.py`); None identifies the batch by its number alone.

    Raises:
        CommitFailed: they cannot be committed, or no broker answered whether they are.
    """
    wire = group.on_the_wire
    if rows is not None:
        plan = plan_of(options.checkpoint, group.batch)
        wire.MergeFrom(pb.TransactionGroup(plan=plan, rows=rows, trusts_number=options.trust_batch_numbers))

    def ask() -> None:
        with Brokers(options) as brokers:
            Coordinator(brokers).commit_group(wire, winners)

    try:
        persistently(ask, options.operation_timeout_seconds)
    except Refused as refused:
        if refused.code not in (pb.InvalidTxnStatus, pb.TransactionNotFound):
            raise CommitFailed(f"{group} cannot be committed: {refused}") from refused
        raise CommitFailed(
            f"{group} cannot be committed, because a task's transaction has ended; if its timeout of"
            f" {options.transaction_timeout_seconds:g} s ended it, raise transaction_timeout_seconds: {refused}"
        ) from refused
    except TidewireError as error:
        advice = (
            "the rows may be visible all the same, so check before you write them again (with txn_app_id and"
            " txn_version, writing again is safe)"
            if group.once
            else "running it again is safe"
        )
        raise CommitFailed(
            f"no broker could be reached within {options.operation_timeout_seconds:g} s to commit {group}; "
            f"{advice}: {error}"
        ) from error


def abort(options: WriteOptions, group: CommitGroup) -> None:
    """Abort the group's open transactions within a short time. A committed batch stays committed."""
    try:
        with Brokers(_hurried(options)) as brokers:
            Coordinator(brokers).abort_group(group.on_the_wire)
    except TidewireError as error:
        # The user sees the failure that led here. The transactions' timeouts make up for this one.
        _log.warning("cannot abort %s; its transactions' timeouts will: %s", group, error)


def abort_one(options: WriteOptions, transaction: TransactionId) -> None:
    """Abort a task's own transaction within a short time."""
    try:
        with Brokers(_hurried(options)) as brokers:
            Coordinator(brokers, transaction[0]).abort(transaction)
    except TidewireError as error:
        _log.warning("cannot abort transaction %s; its timeout will: %s", transaction, error)


def _hurried(options: WriteOptions) -> WriteOptions:
    return replace(options, operation_timeout_seconds=min(ABORT_SECONDS_MAX, options.operation_timeout_seconds))
