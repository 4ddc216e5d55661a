"""The one decision about a batch: which of its transactions are committed.

It is taken by the planner's process when Spark says which tasks count, and it is durable when `commit` returns. A group
is an application's batch; the broker decides each once and answers every later question with what it is, so asking
again after a lost answer is safe, however long after.
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
"""How long each question of an abort may take. What is not aborted is by its time-out."""

_log: Final = logging.getLogger(__name__)


class CommitGroup(NamedTuple):
    """A batch of an application."""

    application: str
    batch: int
    once: bool = False
    """The application has this batch only."""
    origin: str | None = None
    """Who counts the batches, where that is not the application: a query's id."""

    def __str__(self) -> str:
        return "the rows" if self.once else f"batch {self.batch} of {self.application!r}"

    @property
    def on_the_wire(self) -> pb.TransactionGroup:
        """As brokers are told."""
        return pb.TransactionGroup(application=self.application, batch=self.batch, once=self.once, origin=self.origin)


def commit(options: WriteOptions, group: CommitGroup, winners: list[TransactionId], *, rows: str | None = None) -> None:
    """Commit these transactions and no others of the group, unless the batch is committed already.

    Args:
        options: where brokers are.
        group: the batch.
        winners: the transactions that count.
        rows: what the batch holds (`fingerprint.py`); None goes by its number alone.

    Raises:
        CommitFailed: they cannot be committed, or nobody answered whether they are.
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
            f"{group} cannot be committed, because a task's transaction has ended; if it came to its time-out of"
            f" {options.transaction_timeout_seconds:g} s, raise transaction_timeout_seconds: {refused}"
        ) from refused
    except TidewireError as error:
        advice = (
            "they may be there all the same, so look before you write them again (with txn_app_id and txn_version, that"
            " is safe)"
            if group.once
            else "running it again is safe"
        )
        raise CommitFailed(
            f"no broker could be reached to commit {group} for {options.operation_timeout_seconds:g} s; "
            f"{advice}: {error}"
        ) from error


def abort(options: WriteOptions, group: CommitGroup) -> None:
    """Abort the group's transactions, if that can be done soon; a batch that is committed stays so."""
    try:
        with Brokers(_hurried(options)) as brokers:
            Coordinator(brokers).abort_group(group.on_the_wire)
    except TidewireError as error:
        # What led here is what the user gets to see; this is cured by the transactions' time-out.
        _log.warning("%s is left to its transactions' time-out: %s", group, error)


def abort_one(options: WriteOptions, transaction: TransactionId) -> None:
    """Abort a task's own transaction, if that can be done soon."""
    try:
        with Brokers(_hurried(options)) as brokers:
            Coordinator(brokers, transaction[0]).abort(transaction)
    except TidewireError as error:
        _log.warning("transaction %s is left to its time-out: %s", transaction, error)


def _hurried(options: WriteOptions) -> WriteOptions:
    return replace(options, operation_timeout_seconds=min(ABORT_SECONDS_MAX, options.operation_timeout_seconds))
