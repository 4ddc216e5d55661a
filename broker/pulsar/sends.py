"""Checks a SEND before it is queued."""

from typing import NamedTuple

from broker.entry_codecs import SendId
from broker.pulsar.entry_codec import send_id
from broker.pulsar.replication import require_local
from broker.pulsar.sizes import METADATA_BYTES_MAX
from broker.pulsar.unsupported import require_supported_message
from storage.entry import TxnId
from tidewire.wire.pulsar import checksums
from tidewire.wire.pulsar.errors import MalformedMessage
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import BATCH_MESSAGES_MAX, metadata_span, parse_payload


class CheckedSend(NamedTuple):
    """A send that may be published."""

    id: SendId
    message_count: int
    txn: TxnId | None


def check_send(send: pb.CommandSend, payload: bytes) -> CheckedSend:
    """Check that a send is intact, and that the broker supports everything it asks for.

    Raises:
        WireError: its payload is damaged, its metadata is too large, or it does not match the command.
        NotSupported: it asks for something unsupported.
    """
    start, end = span = metadata_span(payload)
    if end - start > METADATA_BYTES_MAX:
        size = end - start
        raise MalformedMessage(
            f"The message's metadata, including its key and properties, has {size} bytes. The limit is "
            f"{METADATA_BYTES_MAX}."
        )
    checksums.verify_payload(payload)
    count = send.num_messages
    if count > 1:
        _require_count(count, payload)
    txn = TxnId(send.txnid_most_bits, send.txnid_least_bits) if send.HasField("txnid_least_bits") else None
    if txn is not None:
        require_local(payload)
    require_supported_message(send, payload, span)
    return CheckedSend(send_id(send, payload), max(count, 1), txn)


def _require_count(count: int, payload: bytes) -> None:
    """Check that a batch has as many messages as its command says, because consumers spend permits for that number.

    Raises:
        MalformedMessage: the numbers differ.
    """
    if count > BATCH_MESSAGES_MAX:
        raise MalformedMessage(
            f"The command announces {count} messages, but a batch may have at most {BATCH_MESSAGES_MAX}. Send smaller "
            "batches."
        )
    metadata, _body = parse_payload(payload)
    if metadata.num_messages_in_batch != count:
        raise MalformedMessage(
            f"The command announces {count} messages, but its batch has {metadata.num_messages_in_batch}."
        )
