"""Transaction commands of one connection: NEW_TXN, END_TXN and what clients send around them.

NEW_TXN and END_TXN may name a group, which is an extension of Tidewire. One END_TXN then ends all transactions of the
group, and names those that are committed.

Every command says by `scalable` which coordinator it addresses. Only v5 is served. A v4 request is refused, so that it
is not answered by the wrong coordinator (T33).
"""

from collections.abc import Iterator

import trio

from broker.errors import NotSupported
from broker.pulsar.connection import Connection
from broker.pulsar.faults import Fault
from broker.pulsar.requests import Inline, Request
from broker.pulsar.unsupported import NO_V4_TRANSACTIONS
from broker.traffic import Traffic
from storage.entry import TxnId
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from txn.coordinator import Coordinator
from txn.errors import WrongDomain
from txn.group_record import UNKNOWN, Content
from txn.headers import TransactionGroup, is_v5
from txn.states import EndAction

_ACTIONS = {pb.COMMIT: EndAction.COMMIT, pb.ABORT: EndAction.ABORT}

APPLICATION_CHARACTERS_MAX = 256
CONTENT_CHARACTERS_MAX = 256
BATCH_MAX = 2**63 - 1
"""The highest batch number; Spark uses signed 64-bit numbers."""


class TransactionHandler:
    """Serves the transaction commands of one connection."""

    def __init__(self, connection: Connection, coordinator: Coordinator, traffic: Traffic) -> None:
        self._outbox = connection.outbox
        self._coordinator = coordinator
        self._traffic = traffic

    @property
    def inline(self) -> dict[int, Inline]:
        """See `CommandHandler`."""
        return {}

    @property
    def requests(self) -> dict[int, Request]:
        """See `CommandHandler`. Clients look for a refusal in the response's own error field."""
        return {
            pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST: Request(self._connect, _connect_refused),
            pb.BaseCommand.NEW_TXN: Request(self._new, _new_refused),
            pb.BaseCommand.ADD_PARTITION_TO_TXN: Request(self._add_partition, _add_partition_refused),
            pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN: Request(self._add_subscription, _add_subscription_refused),
            pb.BaseCommand.END_TXN: Request(self._end, _end_refused),
        }

    def close(self) -> Iterator[None]:
        """See `CommandHandler`. Open transactions do not belong to a connection; they time out."""
        return iter(())

    async def _connect(self, command: pb.BaseCommand) -> None:
        request = command.tc_client_connect_request
        _require_scalable(request.scalable)
        self._coordinator.require(request.tc_id)
        self._put(commands.tc_client_connect_response(request.request_id))

    async def _new(self, command: pb.BaseCommand) -> None:
        request = command.new_txn
        _require_scalable(request.scalable)
        if not request.HasField("group"):
            txn = await self._coordinator.new_transaction(request.tc_id, request.txn_ttl_millis)
            self._put(commands.new_txn_response(request.request_id, txn))
            return
        member = await self._coordinator.new_in_group(
            request.tc_id,
            request.txn_ttl_millis,
            _group_of(request.group),
            once=request.group.once,
            origin=_origin_of(request.group),
        )
        state = pb.GroupState.UNDECIDED if member is not None else pb.GroupState.APPLIED
        self._put(commands.new_txn_response(request.request_id, member, group_state=state))

    async def _add_partition(self, command: pb.BaseCommand) -> None:
        # The segment's owner writes the op record when the first entry arrives; the coordinator keeps no list (T5).
        request = command.add_partition_to_txn
        txn = _txn_of(request.txnid_most_bits, request.txnid_least_bits, scalable=request.scalable)
        self._put(commands.add_partition_to_txn_response(request.request_id, txn))

    async def _add_subscription(self, command: pb.BaseCommand) -> None:
        # Likewise, the owner writes the op record when the first acknowledgement arrives.
        request = command.add_subscription_to_txn
        txn = _txn_of(request.txnid_most_bits, request.txnid_least_bits, scalable=request.scalable)
        self._put(commands.add_subscription_to_txn_response(request.request_id, txn))

    async def _end(self, command: pb.BaseCommand) -> None:
        request = command.end_txn
        asked = trio.current_time()
        if request.HasField("group"):
            await self._end_group(request)
        else:
            txn = _txn_of(request.txnid_most_bits, request.txnid_least_bits, scalable=request.scalable)
            await self._coordinator.end(txn, _action_of(request))
            self._put(commands.end_txn_response(request.request_id, txn))
        if _action_of(request) is EndAction.COMMIT:
            self._traffic.pulsar.commit.count(trio.current_time() - asked)

    async def _end_group(self, request: pb.CommandEndTxn) -> None:
        group = _group_of(request.group)
        winners = [_txn_of(txn.most, txn.least, scalable=request.scalable) for txn in request.winners]
        if _action_of(request) is EndAction.COMMIT:
            await self._coordinator.groups.commit(
                group,
                winners,
                once=request.group.once,
                origin=_origin_of(request.group),
                content=_content_of(request.group),
                trusts_number=request.group.trusts_number,
            )
            self._put(commands.end_group_response(request.request_id, pb.GroupState.APPLIED))
        elif winners:
            raise NotSupported("The request to abort a group names transactions to commit. Leave them out.")
        else:
            last = await self._coordinator.groups.abort(group, once=request.group.once)
            is_applied = last is not None and group.batch <= last
            state = pb.GroupState.APPLIED if is_applied else pb.GroupState.UNDECIDED
            self._put(commands.end_group_response(request.request_id, state, last))

    def _put(self, command: pb.BaseCommand) -> None:
        self._outbox.put(encode_command(command))


def _connect_refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    request_id = command.tc_client_connect_request.request_id
    return commands.tc_client_connect_response(request_id, error=fault.code, message=fault.message)


def _new_refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    return commands.new_txn_response(command.new_txn.request_id, error=fault.code, message=fault.message)


def _add_partition_refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    request = command.add_partition_to_txn
    txn = (request.txnid_most_bits, request.txnid_least_bits)
    return commands.add_partition_to_txn_response(request.request_id, txn, error=fault.code, message=fault.message)


def _add_subscription_refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    request = command.add_subscription_to_txn
    txn = (request.txnid_most_bits, request.txnid_least_bits)
    return commands.add_subscription_to_txn_response(request.request_id, txn, error=fault.code, message=fault.message)


def _end_refused(command: pb.BaseCommand, fault: Fault) -> pb.BaseCommand:
    request = command.end_txn
    txn = (request.txnid_most_bits, request.txnid_least_bits)
    return commands.end_txn_response(request.request_id, txn, error=fault.code, message=fault.message)


def _require_scalable(scalable: bool) -> None:
    if not scalable:
        raise NotSupported(NO_V4_TRANSACTIONS)


def _action_of(request: pb.CommandEndTxn) -> EndAction:
    if not request.HasField("txn_action"):
        # The action is missing or unknown. The enum's default would be a commit.
        raise NotSupported("The request to end a transaction names no action. Name COMMIT or ABORT.")
    return _ACTIONS[request.txn_action]


def _group_of(group: pb.TransactionGroup) -> TransactionGroup:
    if not 0 < len(group.application) <= APPLICATION_CHARACTERS_MAX:
        raise NotSupported(
            f"The group's application name has {len(group.application)} characters. It must have 1 to "
            f"{APPLICATION_CHARACTERS_MAX}."
        )
    if group.batch > BATCH_MAX:
        raise NotSupported(f"The group's batch number is {group.batch}. It must be at most {BATCH_MAX}.")
    return TransactionGroup(group.application, group.batch)


def _origin_of(group: pb.TransactionGroup) -> str | None:
    if len(group.origin) > APPLICATION_CHARACTERS_MAX:
        raise NotSupported(
            f"The group's origin has {len(group.origin)} characters. It must have at most {APPLICATION_CHARACTERS_MAX}."
        )
    return group.origin or None


def _content_of(group: pb.TransactionGroup) -> Content | None:
    if max(len(group.plan), len(group.rows)) > CONTENT_CHARACTERS_MAX:
        raise NotSupported(
            f"The batch's plan or rows have more than {CONTENT_CHARACTERS_MAX} characters. Send a shorter description."
        )
    content = Content(group.plan or None, group.rows or None)
    return None if content == UNKNOWN else content


def _txn_of(most: int, least: int, *, scalable: bool) -> TxnId:
    """Return the v5 transaction that a request names.

    Raises:
        NotSupported: it addresses the v4 coordinator.
        WrongDomain: no v5 coordinator has allocated the id (D6).
    """
    _require_scalable(scalable)
    txn = TxnId(most, least)
    if not is_v5(txn):
        raise WrongDomain(f"{txn.shown} is not the id of a v5 transaction. Begin a transaction at a v5 coordinator.")
    return txn
