"""The requests to transaction coordinators: transactions in groups, and the groups' decisions.

Several brokers may lead coordinators. The broker that the user named says which broker leads which.
"""

import random
from functools import partial
from typing import Final

from tidewire.protocol.coordination import TransactionId, leaders_of, transaction_of
from tidewire.protocol.errors import ConnectFailed, ProtocolViolation
from tidewire.protocol.features import require_transactions
from tidewire.protocol.refusals import refusal
from tidewire.spark.brokers import Brokers
from tidewire.spark.connection import BlockingConnection
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_WATCH_ID: Final = 1


class Coordinator:
    """One of the coordinators, over a connection of `brokers`."""

    def __init__(self, brokers: Brokers, number: int | None = None) -> None:
        """Find a coordinator and connect to it; any one unless a number is given.

        Raises:
            TidewireError: no broker could be asked, or there is no coordinator.
        """
        service = brokers.service()
        self._number, url = _leader(service, number)
        self._connection = brokers.at(url, f"transaction coordinator {self._number}")
        self._connection.request(
            partial(commands.tc_client_connect, tc_id=self._number), pb.CommandTcClientConnectResponse
        )

    def new_transaction(self, group: pb.TransactionGroup, timeout_ms: int) -> TransactionId | None:
        """Begin a transaction of a group; None when the group's batch, or a later one, is already committed.

        Raises:
            ProtocolViolation: the broker does not support groups.
            TidewireError: no transaction could be begun.
        """
        answer = self._connection.request(
            partial(commands.new_txn, tc_id=self._number, timeout_ms=timeout_ms, group=group), pb.CommandNewTxnResponse
        )
        self._require_groups(answer.HasField("group_state"))
        if answer.group_state == pb.APPLIED:
            return None
        return transaction_of(answer, self._number)

    def include(self, transaction: TransactionId, segment: str) -> None:
        """Announce that the transaction will write to a segment.

        Raises:
            TidewireError: it was refused, or not answered.
        """
        self._connection.request(
            partial(commands.add_partition_to_txn, txn=transaction, partitions=[segment]),
            pb.CommandAddPartitionToTxnResponse,
        )

    def abort(self, transaction: TransactionId) -> None:
        """Abort one transaction, whatever its group.

        Raises:
            TidewireError: it was refused, or not answered.
        """
        self._connection.request(partial(commands.end_txn, txn=transaction, commit=False), pb.CommandEndTxnResponse)

    def commit_group(self, group: pb.TransactionGroup, winners: list[TransactionId]) -> None:
        """Commit these of a group's transactions and abort its others, unless the batch is already committed.

        Durable on return. It is safe to ask again.

        Raises:
            Refused: one of them is no longer open (InvalidTxnStatus), or another reason.
            TidewireError: no answer came.
        """
        answer = self._connection.request(
            partial(commands.end_group, group=group, winners=winners, commit=True), pb.CommandEndTxnResponse
        )
        self._require_groups(answer.group_state == pb.APPLIED)

    def abort_group(self, group: pb.TransactionGroup) -> int | None:
        """Abort the group's open transactions. A committed group stays committed.

        Returns:
            The last committed batch of the application; None when there is none.

        Raises:
            TidewireError: it was refused, or not answered.
        """
        answer = self._connection.request(
            partial(commands.end_group, group=group, commit=False), pb.CommandEndTxnResponse
        )
        self._require_groups(answer.HasField("group_state"))
        return answer.last_applied_batch if answer.HasField("last_applied_batch") else None

    def _require_groups(self, are_known: bool) -> None:
        if not are_known:
            raise ProtocolViolation(
                f"the broker at {self._connection.address} does not support groups of transactions; "
                "writing from Spark needs a Tidewire broker of this version"
            )


def _leader(service: BlockingConnection, number: int | None) -> tuple[int, str]:
    """A coordinator's number, and the URL of the broker that leads it."""
    require_transactions(service)
    service.send(commands.watch_tc_assignments(_WATCH_ID))
    deadline = service.deadline()
    command = service.receive(deadline, "the list of transaction coordinators").command
    while command.type != pb.BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE:
        command = service.receive(deadline, "the list of transaction coordinators").command
    update = command.watch_tc_assignments_update
    if update.HasField("error"):
        raise refusal(update.error, f"{service.address} does not list the transaction coordinators: {update.message}")
    service.send(commands.watch_tc_assignments_close(_WATCH_ID))
    leaders = leaders_of(update)
    if number is None and leaders:
        number = random.choice(sorted(leaders))  # noqa: S311 - it spreads load and nothing else
    if number is None or number not in leaders:
        raise ConnectFailed(f"{service.address} says that no broker coordinates transactions at the moment")
    return number, leaders[number]
