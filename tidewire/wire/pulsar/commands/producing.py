"""Commands of producers. SEND is followed by a payload (messages.py); the others stand alone."""

from collections.abc import Mapping
from typing import Final

from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import NO_REQUEST, unsigned

_Type = pb.BaseCommand.Type
# These two are made for every message. Looking up the number each time would cost a good part of that.
_SEND: Final = _Type.SEND
_SEND_RECEIPT: Final = _Type.SEND_RECEIPT


def producer(
    topic: str,
    producer_id: int,
    request_id: int,
    *,
    name: str | None = None,
    is_generated: bool = False,
    access_mode: pb.ProducerAccessMode = pb.ProducerAccessMode.Shared,
    epoch: int = 0,
    txn_enabled: bool = False,
    schema: pb.Schema | None = None,
    properties: Mapping[str, str] | None = None,
) -> pb.BaseCommand:
    """Opens a producer. Without a `name`, the broker chooses one.

    `is_generated` says that the broker chose this name before.
    """
    content = pb.CommandProducer(
        topic=topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_name=name,
        user_provided_producer_name=name is not None and not is_generated,
        producer_access_mode=access_mode,
        epoch=epoch,
        txn_enabled=txn_enabled,
        schema=schema,
        metadata=[pb.KeyValue(key=key, value=value) for key, value in (properties or {}).items()],
    )
    return pb.BaseCommand(type=_Type.PRODUCER, producer=content)


def producer_success(
    request_id: int,
    name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes = b"",
    topic_epoch: int | None = None,
    ready: bool = True,
) -> pb.BaseCommand:
    """The producer is open under this name. Not `ready`: it waits for exclusive access and is answered again."""
    content = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return pb.BaseCommand(type=_Type.PRODUCER_SUCCESS, producer_success=content)


def send(
    producer_id: int,
    sequence_id: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    txn: tuple[int, int] | None = None,
    is_chunk: bool = False,
) -> pb.BaseCommand:
    """Announces the payload behind it. The ids are those of the batch's first and last message.

    `is_chunk`: the payload is one of several of a message. All of them have the message's id, and each is answered.
    """
    made = pb.BaseCommand()
    made.type = _SEND
    content = made.send
    content.producer_id = producer_id
    content.sequence_id = sequence_id
    content.num_messages = num_messages
    if highest_sequence_id is not None:
        content.highest_sequence_id = highest_sequence_id
    if txn is not None:
        content.txnid_most_bits, content.txnid_least_bits = txn
    if is_chunk:
        content.is_chunk = True
    return made


def send_receipt(
    producer_id: int, sequence_id: int, ledger: int, entry: int, *, highest_sequence_id: int = 0
) -> pb.BaseCommand:
    """The payload with this sequence id is stored at this position; at (-1, -1) if it was stored before."""
    made = pb.BaseCommand()
    made.type = _SEND_RECEIPT
    content = made.send_receipt
    content.producer_id = producer_id
    content.sequence_id = sequence_id
    identity = content.message_id
    identity.ledger_id = unsigned(ledger)
    identity.entry_id = unsigned(entry)
    if highest_sequence_id:
        content.highest_sequence_id = highest_sequence_id
    return made


def send_error(producer_id: int, sequence_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The payload with this sequence id is not stored."""
    content = pb.CommandSendError(producer_id=producer_id, sequence_id=sequence_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.SEND_ERROR, send_error=content)


def close_producer(
    producer_id: int, request_id: int = NO_REQUEST, *, assigned_url: str | None = None
) -> pb.BaseCommand:
    """From the client, a request. From the broker, without a request id, the news that the producer is closed.

    `assigned_url` is where the producer should connect next; None lets it look the topic up.
    """
    content = pb.CommandCloseProducer(
        producer_id=producer_id, request_id=request_id, assigned_broker_service_url=assigned_url
    )
    return pb.BaseCommand(type=_Type.CLOSE_PRODUCER, close_producer=content)
