"""What is asked of transaction coordinators: transactions in groups, and the groups' decisions.

A coordinator is any broker that leads one; the broker that the user named says which there are.
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
        """Find it, and be introduced; any one unless a number is given.

        Raises:
            TidewireError: nobody could be asked, or there is none.
        """
        service = brokers.service()
        self._number, url = _leader(service, number)
        self._connection = brokers.at(url, f"transaction coordinator {self._number}")
        self._connection.request(
            partial(commands.tc_client_connect, tc_id=self._number), pb.CommandTcClientConnectResponse
        )

    def new_transaction(self, group: pb.TransactionGroup, timeout_ms: int) -> TransactionId | None:
        """A transaction of a group; None when the group's batch, or a later one, is committed already.

        Raises:
            ProtocolViolation: the broker knows no groups.
            TidewireError: there is none to be had.
        """
        answer = self._connection.request(
            partial(commands.new_txn, tc_id=self._number, timeout_ms=timeout_ms, group=group), pb.CommandNewTxnResponse
        )
        self._require_groups(answer.HasField("group_state"))
        if answer.group_state == pb.APPLIED:
            return None
        return transaction_of(answer, self._number)

    def include(self, transaction: TransactionId, segment: str) -> None:
        """Announce that the transaction is going to write to a segment.

        Raises:
            TidewireError: it was refused, or not answered.
        """
        self._connection.request(
            partial(commands.add_partition_to_txn, txn=transaction, partitions=[segment]),
            pb.CommandAddPartitionToTxnResponse,
        )

    def abort(self, transaction: TransactionId) -> None:
        """Abort one transaction, of whatever group.

        Raises:
            TidewireError: it was refused, or not answered.
        """
        self._connection.request(partial(commands.end_txn, txn=transaction, commit=False), pb.CommandEndTxnResponse)

    def commit_group(self, group: pb.TransactionGroup, winners: list[TransactionId]) -> None:
        """Commit these of a group's transactions and abort its others, unless the batch is committed already.

        Durable on return; asking again is safe.

        Raises:
            Refused: one of them is not open any more (InvalidTxnStatus), or another reason.
            TidewireError: nobody answered.
        """
        answer = self._connection.request(
            partial(commands.end_group, group=group, winners=winners, commit=True), pb.CommandEndTxnResponse
        )
        self._require_groups(answer.group_state == pb.APPLIED)

    def abort_group(self, group: pb.TransactionGroup) -> int | None:
        """Abort the group's open transactions; one that is committed stays so.

        Returns:
            The last batch of its application that is committed; None when there is none.

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
    """The number of a coordinator, and its broker."""
    require_transactions(service)
    service.send(commands.watch_tc_assignments(_WATCH_ID))
    deadline = service.deadline()
    command = service.receive(deadline, "who coordinates transactions").command
    while command.type != pb.BaseCommand.WATCH_TC_ASSIGNMENTS_UPDATE:
        command = service.receive(deadline, "who coordinates transactions").command
    update = command.watch_tc_assignments_update
    if update.HasField("error"):
        raise refusal(update.error, f"{service.address} does not tell who coordinates transactions: {update.message}")
    service.send(commands.watch_tc_assignments_close(_WATCH_ID))
    leaders = leaders_of(update)
    if number is None and leaders:
        number = random.choice(sorted(leaders))  # noqa: S311 - it spreads load and nothing else
    if number is None or number not in leaders:
        raise ConnectFailed(f"{service.address} says that no broker coordinates transactions at the moment")
    return number, leaders[number]
