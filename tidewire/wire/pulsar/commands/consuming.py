"""Commands of consumers. MESSAGE is followed by a payload (messages.py); the others stand alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST, unsigned

_Type = pb.BaseCommand.Type
_SubType = pb.CommandSubscribe.SubType
_InitialPosition = pb.CommandSubscribe.InitialPosition
# These two are made for every message. Looking up the number each time would cost a good part of that.
_FLOW: Final = _Type.FLOW
_MESSAGE: Final = _Type.MESSAGE


def subscribe(
    topic: str,
    subscription: str,
    consumer_id: int,
    request_id: int,
    *,
    sub_type: pb.CommandSubscribe.SubType = _SubType.Exclusive,
    name: str | None = None,
    durable: bool = True,
    initial_position: pb.CommandSubscribe.InitialPosition = _InitialPosition.Latest,
    start: pb.MessageIdData | None = None,
    start_seconds_ago: int | None = None,
    priority_level: int | None = None,
    consumer_epoch: int | None = None,
    schema: pb.Schema | None = None,
    properties: Mapping[str, str] | None = None,
) -> pb.BaseCommand:
    """Opens a consumer.

    `initial_position` applies to a new subscription. For readers (not `durable`), `start` is the message behind which
    they begin. `start_seconds_ago` makes them begin with messages of at most that age instead.
    """
    content = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        sub_type=sub_type,
        consumer_id=consumer_id,
        request_id=request_id,
        consumer_name=name,
        durable=durable,
        initial_position=initial_position,
        start_message_id=start,
        start_message_rollback_duration_sec=start_seconds_ago,
        priority_level=priority_level,
        consumer_epoch=consumer_epoch,
        schema=schema,
        metadata=[pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()],
    )
    return pb.BaseCommand(type=_Type.SUBSCRIBE, subscribe=content)


def spark_consumer_name(subscription: str) -> str:
    """Return the name of the consumer by which a Spark query or job holds a subscription."""
    return f"spark-{subscription}"


def flow(consumer_id: int, permits: int) -> pb.BaseCommand:
    """The consumer accepts this many more messages."""
    made = pb.BaseCommand()
    made.type = _FLOW
    made.flow.consumer_id = consumer_id
    made.flow.message_permits = permits
    return made


def message(
    consumer_id: int,
    ledger: int,
    entry: int,
    *,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> pb.BaseCommand:
    """Announces the payload of an entry behind it. `ack_set` is set if some of its messages are acknowledged."""
    made = pb.BaseCommand()
    made.type = _MESSAGE
    content = made.message
    content.consumer_id = consumer_id
    identity = content.message_id
    identity.ledger_id = unsigned(ledger)
    identity.entry_id = unsigned(entry)
    identity.partition = partition
    if redelivery_count:
        content.redelivery_count = redelivery_count
    if ack_set:
        content.ack_set.extend(ack_set)
    if consumer_epoch is not None:
        content.consumer_epoch = consumer_epoch
    return made


def ack(
    consumer_id: int,
    message_ids: Iterable[pb.MessageIdData],
    *,
    cumulative: bool = False,
    txn: tuple[int, int] | None = None,
    request_id: int | None = None,
) -> pb.BaseCommand:
    """Acknowledges these messages; with `cumulative`, all up to the one.

    The broker answers it if it has a request id.
    """
    content = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.AckType.Cumulative if cumulative else pb.CommandAck.AckType.Individual,
        message_id=message_ids,
        request_id=request_id,
    )
    if txn is not None:
        content.txnid_most_bits, content.txnid_least_bits = txn
    return pb.BaseCommand(type=_Type.ACK, ack=content)


def ack_response(
    consumer_id: int,
    request_id: int,
    *,
    txn: tuple[int, int] | None = None,
    error: pb.ServerError | None = None,
    message: str | None = None,
) -> pb.BaseCommand:
    """The acknowledgement is durable; with `error`, it was refused."""
    content = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id, error=error, message=message)
    if txn is not None:
        content.txnid_most_bits, content.txnid_least_bits = txn
    return pb.BaseCommand(type=_Type.ACK_RESPONSE, ack_response=content)


def redeliver(
    consumer_id: int, message_ids: Iterable[pb.MessageIdData] = (), *, consumer_epoch: int | None = None
) -> pb.BaseCommand:
    """Asks for these unacknowledged messages again; without ids, for all."""
    content = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id, message_ids=message_ids, consumer_epoch=consumer_epoch
    )
    return pb.BaseCommand(type=_Type.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliver_unacknowledged_messages=content)


def active_consumer_change(consumer_id: int, *, is_active: bool) -> pb.BaseCommand:
    """This consumer of a failover subscription became, or is no longer, the one that gets messages."""
    content = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return pb.BaseCommand(type=_Type.ACTIVE_CONSUMER_CHANGE, active_consumer_change=content)


def reached_end_of_topic(consumer_id: int) -> pb.BaseCommand:
    """The topic is sealed, and this subscription has acknowledged all of it."""
    content = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return pb.BaseCommand(type=_Type.REACHED_END_OF_TOPIC, reached_end_of_topic=content)


def seek(
    consumer_id: int, request_id: int, *, to: pb.MessageIdData | None = None, publish_time_ms: int | None = None
) -> pb.BaseCommand:
    """Asks to continue from one message, or from the first message published at or after a time."""
    assert (to is None) != (publish_time_ms is None), "seek goes to a message or to a time"
    content = pb.CommandSeek(
        consumer_id=consumer_id, request_id=request_id, message_id=to, message_publish_time=publish_time_ms
    )
    return pb.BaseCommand(type=_Type.SEEK, seek=content)


def unsubscribe(consumer_id: int, request_id: int, *, force: bool = False) -> pb.BaseCommand:
    """Asks to remove the consumer's subscription. With `force`, even if others consume from it."""
    content = pb.CommandUnsubscribe(consumer_id=consumer_id, request_id=request_id, force=force)
    return pb.BaseCommand(type=_Type.UNSUBSCRIBE, unsubscribe=content)


def close_consumer(
    consumer_id: int, request_id: int = NO_REQUEST, *, assigned_url: str | None = None
) -> pb.BaseCommand:
    """From the client, a request. From the broker, without a request id, the news that the consumer is closed.

    `assigned_url` is where the consumer should connect next; None lets it look the topic up.
    """
    content = pb.CommandCloseConsumer(
        consumer_id=consumer_id, request_id=request_id, assigned_broker_service_url=assigned_url
    )
    return pb.BaseCommand(type=_Type.CLOSE_CONSUMER, close_consumer=content)


def get_last_message_id(
    consumer_id: int, request_id: int, *, backlog_range: pb.BacklogRangeRequest | None = None
) -> pb.BaseCommand:
    """Asks for the last message that the consumer could get now. A Tidewire broker also measures `backlog_range`."""
    content = pb.CommandGetLastMessageId(consumer_id=consumer_id, request_id=request_id, backlog_range=backlog_range)
    return pb.BaseCommand(type=_Type.GET_LAST_MESSAGE_ID, get_last_message_id=content)


def get_last_message_id_response(
    request_id: int,
    last: pb.MessageIdData,
    *,
    mark_delete: pb.MessageIdData | None = None,
    backlog_range: pb.BacklogRange | None = None,
) -> pb.BaseCommand:
    """The last readable message, the acknowledged position of the subscription, and the requested backlog range."""
    content = pb.CommandGetLastMessageIdResponse(
        request_id=request_id,
        last_message_id=last,
        consumer_mark_delete_position=mark_delete,
        backlog_range=backlog_range,
    )
    return pb.BaseCommand(type=_Type.GET_LAST_MESSAGE_ID_RESPONSE, get_last_message_id_response=content)


def consumer_stats(consumer_id: int, request_id: int) -> pb.BaseCommand:
    """Asks for the broker's counters of a consumer."""
    content = pb.CommandConsumerStats(consumer_id=consumer_id, request_id=request_id)
    return pb.BaseCommand(type=_Type.CONSUMER_STATS, consumer_stats=content)


def consumer_stats_response(
    request_id: int, *, name: str, sub_type: str, available_permits: int, unacked_messages: int, msg_backlog: int
) -> pb.BaseCommand:
    """The broker's counters of a consumer and its subscription. Permits may be below zero by one batch."""
    content = pb.CommandConsumerStatsResponse(
        request_id=request_id,
        consumer_name=name,
        type=sub_type,
        available_permits=unsigned(available_permits),
        unacked_messages=unacked_messages,
        msg_backlog=msg_backlog,
    )
    return pb.BaseCommand(type=_Type.CONSUMER_STATS_RESPONSE, consumer_stats_response=content)


def consumer_stats_failed(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """There is no such consumer."""
    content = pb.CommandConsumerStatsResponse(request_id=request_id, error_code=code, error_message=message)
    return pb.BaseCommand(type=_Type.CONSUMER_STATS_RESPONSE, consumer_stats_response=content)
