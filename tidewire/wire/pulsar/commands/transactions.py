"""Commands of transactions. A transaction id is two unsigned 64-bit halves, (most, least).

`scalable` selects the coordinator of scalable topics. It is always sent, because it tells the receiver which of two
coordinators a command is for. A response without `error` is a success.

Left out: END_TXN_ON_PARTITION and END_TXN_ON_SUBSCRIPTION, which brokers of the older coordinator send each other.
"""

from collections.abc import Iterable

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Type = pb.BaseCommand.Type


def watch_tc_assignments(watch_id: int) -> pb.BaseCommand:
    """Asks which broker leads which transaction coordinator, now and at each change."""
    return pb.BaseCommand(
        type=_Type.WATCH_TC_ASSIGNMENTS, watch_tc_assignments=pb.CommandWatchTcAssignments(watch_id=watch_id)
    )


def watch_tc_assignments_update(
    watch_id: int, parallelism: int, assignments: Iterable[pb.TcAssignment]
) -> pb.BaseCommand:
    """All coordinators (`parallelism`), and who leads them."""
    content = pb.CommandWatchTcAssignmentsUpdate(
        watch_id=watch_id, snapshot=pb.TcAssignmentsSnapshot(parallelism=parallelism, assignments=assignments)
    )
    return pb.BaseCommand(type=_Type.WATCH_TC_ASSIGNMENTS_UPDATE, watch_tc_assignments_update=content)


def watch_tc_assignments_failed(watch_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The coordinators are not available."""
    content = pb.CommandWatchTcAssignmentsUpdate(watch_id=watch_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.WATCH_TC_ASSIGNMENTS_UPDATE, watch_tc_assignments_update=content)


def watch_tc_assignments_close(watch_id: int) -> pb.BaseCommand:
    """Ends the watch. Not answered."""
    return pb.BaseCommand(
        type=_Type.WATCH_TC_ASSIGNMENTS_CLOSE,
        watch_tc_assignments_close=pb.CommandWatchTcAssignmentsClose(watch_id=watch_id),
    )


def tc_client_connect(request_id: int, tc_id: int, *, scalable: bool = True) -> pb.BaseCommand:
    """Attaches the connection to one coordinator."""
    content = pb.CommandTcClientConnectRequest(request_id=request_id, tc_id=tc_id, scalable=scalable)
    return pb.BaseCommand(type=_Type.TC_CLIENT_CONNECT_REQUEST, tc_client_connect_request=content)


def tc_client_connect_response(
    request_id: int, *, error: pb.ServerError | None = None, message: str | None = None
) -> pb.BaseCommand:
    """The connection is attached; with `error`, this broker does not lead the coordinator."""
    content = pb.CommandTcClientConnectResponse(request_id=request_id, error=error, message=message)
    return pb.BaseCommand(type=_Type.TC_CLIENT_CONNECT_RESPONSE, tc_client_connect_response=content)


def new_txn(
    request_id: int, tc_id: int, timeout_ms: int, *, group: pb.TransactionGroup | None = None, scalable: bool = True
) -> pb.BaseCommand:
    """Asks for a transaction that aborts itself after the timeout. The `group` field is Tidewire's own."""
    content = pb.CommandNewTxn(
        request_id=request_id, tc_id=tc_id, txn_ttl_millis=timeout_ms, scalable=scalable, group=group
    )
    return pb.BaseCommand(type=_Type.NEW_TXN, new_txn=content)


def new_txn_response(
    request_id: int,
    txn: tuple[int, int] | None = None,
    *,
    group_state: pb.GroupState | None = None,
    error: pb.ServerError | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """The transaction's id. It is absent with `error`, and if the requested group is already applied."""
    content = pb.CommandNewTxnResponse(request_id=request_id, group_state=group_state, error=error, message=message)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.NEW_TXN_RESPONSE, new_txn_response=content)


def add_partition_to_txn(
    request_id: int, txn: tuple[int, int], partitions: Iterable[str], *, scalable: bool = True
) -> pb.BaseCommand:
    """The transaction will write to these topics or segments."""
    content = pb.CommandAddPartitionToTxn(request_id=request_id, partitions=partitions, scalable=scalable)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.ADD_PARTITION_TO_TXN, add_partition_to_txn=content)


def add_partition_to_txn_response(
    request_id: int, txn: tuple[int, int], *, error: pb.ServerError | None = None, message: str | None = None
) -> pb.BaseCommand:
    """The transaction may write there."""
    content = pb.CommandAddPartitionToTxnResponse(request_id=request_id, error=error, message=message)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.ADD_PARTITION_TO_TXN_RESPONSE, add_partition_to_txn_response=content)


def add_subscription_to_txn(
    request_id: int, txn: tuple[int, int], subscriptions: Iterable[tuple[str, str]], *, scalable: bool = True
) -> pb.BaseCommand:
    """The transaction will acknowledge on these pairs of (topic or segment, subscription)."""
    content = pb.CommandAddSubscriptionToTxn(
        request_id=request_id,
        subscription=[pb.Subscription(topic=topic, subscription=name) for topic, name in subscriptions],
        scalable=scalable,
    )
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.ADD_SUBSCRIPTION_TO_TXN, add_subscription_to_txn=content)


def add_subscription_to_txn_response(
    request_id: int, txn: tuple[int, int], *, error: pb.ServerError | None = None, message: str | None = None
) -> pb.BaseCommand:
    """The transaction may acknowledge there."""
    content = pb.CommandAddSubscriptionToTxnResponse(request_id=request_id, error=error, message=message)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.ADD_SUBSCRIPTION_TO_TXN_RESPONSE, add_subscription_to_txn_response=content)


def end_txn(request_id: int, txn: tuple[int, int], *, commit: bool, scalable: bool = True) -> pb.BaseCommand:
    """Asks to commit or abort."""
    action = pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT
    content = pb.CommandEndTxn(request_id=request_id, txn_action=action, scalable=scalable)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.END_TXN, end_txn=content)


def end_group(
    request_id: int, group: pb.TransactionGroup, winners: Iterable[tuple[int, int]] = (), *, commit: bool
) -> pb.BaseCommand:
    """Asks to commit these transactions of a group and abort the others, or to abort all that are open in it."""
    content = pb.CommandEndTxn(
        request_id=request_id,
        txn_action=pb.TxnAction.COMMIT if commit else pb.TxnAction.ABORT,
        scalable=True,
        group=group,
        winners=[pb.TransactionId(most=most, least=least) for most, least in winners],
    )
    return pb.BaseCommand(type=_Type.END_TXN, end_txn=content)


def end_group_response(
    request_id: int, group_state: pb.GroupState, last_applied_batch: int | None = None
) -> pb.BaseCommand:
    """The durable state of the group; if the group was aborted, also that of its application."""
    content = pb.CommandEndTxnResponse(
        request_id=request_id, group_state=group_state, last_applied_batch=last_applied_batch
    )
    return pb.BaseCommand(type=_Type.END_TXN_RESPONSE, end_txn_response=content)


def end_txn_response(
    request_id: int, txn: tuple[int, int], *, error: pb.ServerError | None = None, message: str | None = None
) -> pb.BaseCommand:
    """The decision is durable; with `error`, the request was refused."""
    content = pb.CommandEndTxnResponse(request_id=request_id, error=error, message=message)
    _identify(content, txn)
    return pb.BaseCommand(type=_Type.END_TXN_RESPONSE, end_txn_response=content)


def _identify(
    content: pb.CommandNewTxnResponse
    | pb.CommandAddPartitionToTxn
    | pb.CommandAddPartitionToTxnResponse
    | pb.CommandAddSubscriptionToTxn
    | pb.CommandAddSubscriptionToTxnResponse
    | pb.CommandEndTxn
    | pb.CommandEndTxnResponse,
    txn: tuple[int, int] | None,
) -> None:
    if txn is not None:
        content.txnid_most_bits, content.txnid_least_bits = txn
