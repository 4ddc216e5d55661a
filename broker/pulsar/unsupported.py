"""Refuses legal requests that this broker does not support. Each is refused by name; none is silently ignored.

docs/pulsar-fields.md lists how the broker handles every field of the protocol. The fields that it calls refused are
refused here, or beside the code that serves the rest of their command.
"""

from dataclasses import dataclass
from typing import Final

from broker.errors import CredentialsUnchecked, NotSupported
from broker.principal import ANONYMOUS, Principal
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload

NO_CREDENTIALS: Final = (
    "This broker does not check credentials, so it refuses them. Connect without authentication, or through a proxy "
    "that checks and removes them."
)

NO_V4_TRANSACTIONS: Final = (
    "The broker does not support transactions of v4 clients (without `scalable`). Use the v5 client on topic:// topics."
)

COORDINATORS_OF_V4: Final = "persistent://pulsar/system/transaction_coordinator_assign"
"""A v4 client with transactions asks how many partitions this topic has; that many coordinators there are."""

_UNAUTHENTICATED: Final = frozenset({"", "none"})

# The tags of `deliver_at_time` and `marker_type`. Few messages have these bytes in their metadata, and only those are
# parsed.
_DELIVER_AT_TIME: Final = b"\x98\x01"
_MARKER_TYPE: Final = b"\xa0\x01"


@dataclass(slots=True)
class Peer:
    """The client of one connection: its name in the log, and the properties that responses depend on."""

    address: str = ""
    version: str = ""
    """The client's version string from CONNECT."""

    @property
    def retries_refused_connect(self) -> bool:
        """Whether the client treats a refused CONNECT as a lost connection, and retries until its timeout.

        If the next request is refused instead, it gives up at once.
        """
        return self._is_cpp

    @property
    def fails_send_at(self) -> pb.ServerError:
        """The error code at which the client fails a send permanently.

        At any other code it reconnects and resends the message, until the send times out. The C++ client, which is also
        inside the Python client, has only one such code, and other clients have another one.
        """
        return pb.ChecksumError if self._is_cpp else pb.NotAllowedError

    @property
    def gives_up_name_at(self) -> pb.ServerError:
        """The error code at which the client stops looking up an illegal name.

        At InvalidTopicName, the C++ client looks it up again until its timeout.
        """
        return pb.NotAllowedError if self._is_cpp else pb.InvalidTopicName

    @property
    def heeds_closed_registrations(self) -> bool:
        """Whether the client registers an ordered consumer again when the broker closes its registration.

        The Java client ignores that (5.0.0-M1 looks for the id among its consumers of segments alone). It registers
        again only when it has lost the connection.
        """
        return self.version.startswith("tidewire")

    @property
    def _is_cpp(self) -> bool:
        return self.version.startswith("Pulsar-CPP")


def principal_of(connect: pb.CommandConnect) -> Principal:
    """Return the identity that a client acts for. A client must not be led to believe that it is authenticated.

    Raises:
        CredentialsUnchecked: it sends credentials, or acts for another identity.
    """
    method = connect.auth_method_name.lower()
    given = connect.auth_data or connect.auth_method != pb.AuthMethodNone or method not in _UNAUTHENTICATED
    if given or connect.original_principal or connect.original_auth_data:
        raise CredentialsUnchecked(NO_CREDENTIALS)
    return ANONYMOUS


def require_no_principal(request: pb.CommandLookupTopic | pb.CommandPartitionedTopicMetadata) -> None:
    """Check that a lookup is not made for another identity.

    Raises:
        CredentialsUnchecked: it is.
    """
    if request.original_principal or request.original_auth_data:
        raise CredentialsUnchecked(NO_CREDENTIALS)


def require_ordinary_topic(name: str) -> None:
    """Check that a client does not look for v4 coordinators.

    Otherwise the client says that transactions are switched off or not ready yet, and its user waits.

    Raises:
        NotSupported: it does.
    """
    if name == COORDINATORS_OF_V4:
        raise NotSupported(NO_V4_TRANSACTIONS)


def require_supported_producer(request: pb.CommandProducer) -> None:
    """Check that the broker supports everything that a producer asks for.

    Raises:
        NotSupported: it does not.
    """
    if request.producer_access_mode != pb.Shared:
        asked = pb.ProducerAccessMode.Name(request.producer_access_mode)
        raise NotSupported(f"The broker does not support producers of access mode {asked}. Use Shared.")


def require_supported_consumer(request: pb.CommandSubscribe) -> None:
    """Check that the broker supports everything that a consumer asks for, except its subscription type.

    Raises:
        NotSupported: it does not.
    """
    if request.subscription_properties:
        raise NotSupported("The broker does not support properties of subscriptions. Subscribe without them.")
    if request.durable and request.start_message_rollback_duration_sec:
        raise NotSupported("A durable subscription cannot start at a time. Subscribe first, then seek to the time.")


def require_supported_message(send: pb.CommandSend, payload: bytes, metadata_span: tuple[int, int]) -> None:
    """Check that a message is an ordinary one, without a delivery time, and not a marker.

    `metadata_span` is where the metadata is in the payload.

    Raises:
        NotSupported: it has a delivery time, or is a marker.
        MalformedMessage: it may be one of these, but its metadata cannot be read.
    """
    start, end = metadata_span
    is_suspect = payload.find(_DELIVER_AT_TIME, start, end) >= 0 or payload.find(_MARKER_TYPE, start, end) >= 0
    if not is_suspect and not send.marker:
        return
    metadata, _body = parse_payload(payload)
    if metadata.HasField("deliver_at_time"):
        raise NotSupported("The broker does not support delayed delivery. Send the message without a delivery time.")
    if metadata.HasField("marker_type") or send.marker:
        raise NotSupported("Only brokers may write markers. Send an ordinary message.")
