"""Requests that clients may make and this broker does not support: each is refused by name, none is dropped in silence.

docs/pulsar-fields.md says of every field of the protocol what becomes of it; what it calls refused is refused here, or
beside the code that serves the rest of its command.
"""

from dataclasses import dataclass
from typing import Final

from broker.errors import CredentialsUnchecked, NotSupported
from broker.principal import ANONYMOUS, Principal
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.messages import parse_payload

NO_CREDENTIALS: Final = (
    "This broker does not check credentials, and so it takes none. Connect without authentication, or through a proxy "
    "that checks them and passes none on."
)

_UNAUTHENTICATED: Final = frozenset({"", "none"})

# The tags of `deliver_at_time` and `marker_type`. Almost no message has these bytes in its metadata, and only one that
# has them is parsed.
_DELIVER_AT_TIME: Final = b"\x98\x01"
_MARKER_TYPE: Final = b"\xa0\x01"


@dataclass(slots=True)
class Peer:
    """The client of one connection: by what the log names it, and on what answers depend."""

    address: str = ""
    version: str = ""
    """What it calls itself in CONNECT."""

    @property
    def retries_refused_connect(self) -> bool:
        """Whether it takes any answer to CONNECT but CONNECTED for a lost connection, and tries until its time-out.

        It gives up at once when the request that follows is refused.
        """
        return self._is_cpp

    @property
    def fails_send_at(self) -> pb.ServerError:
        """The error code at which it fails one send for good.

        At any other it opens a new connection and sends the message again, until the send times out. The C++ client,
        which the Python client is made of, knows one code only, and it is not the one that the others know.
        """
        return pb.ChecksumError if self._is_cpp else pb.NotAllowedError

    @property
    def _is_cpp(self) -> bool:
        return self.version.startswith("Pulsar-CPP")


def principal_of(connect: pb.CommandConnect) -> Principal:
    """Whom a client acts for. It must not believe that it is being authenticated.

    Raises:
        CredentialsUnchecked: it brings credentials, or speaks for somebody else.
    """
    method = connect.auth_method_name.lower()
    given = connect.auth_data or connect.auth_method != pb.AuthMethodNone or method not in _UNAUTHENTICATED
    if given or connect.original_principal or connect.original_auth_data:
        raise CredentialsUnchecked(NO_CREDENTIALS)
    return ANONYMOUS


def require_no_principal(request: pb.CommandLookupTopic | pb.CommandPartitionedTopicMetadata) -> None:
    """Hold that a look-up is not made for somebody else.

    Raises:
        CredentialsUnchecked: it is.
    """
    if request.original_principal or request.original_auth_data:
        raise CredentialsUnchecked(NO_CREDENTIALS)


def require_supported_producer(request: pb.CommandProducer) -> None:
    """Hold that a producer asks for nothing that is not served.

    Raises:
        NotSupported: it does.
    """
    if request.producer_access_mode != pb.Shared:
        asked = pb.ProducerAccessMode.Name(request.producer_access_mode)
        raise NotSupported(f"producers of access mode {asked} are not served yet; use Shared")
    if request.encrypted:
        raise NotSupported("topics do not require encryption; produce without the flag, payloads pass untouched")


def require_supported_consumer(request: pb.CommandSubscribe) -> None:
    """Hold that a consumer asks for nothing that is not served; its subscription type apart.

    Raises:
        NotSupported: it does.
    """
    if request.subscription_properties:
        raise NotSupported("subscriptions keep no properties; subscribe without them")
    if request.durable and request.start_message_rollback_duration_sec:
        raise NotSupported("a durable subscription does not begin at a time; subscribe, and seek to the time")


def require_supported_message(send: pb.CommandSend, payload: bytes, metadata_span: tuple[int, int]) -> None:
    """Hold that a message is one to deliver to consumers, as soon as it can be. Its metadata stand in the span.

    Raises:
        NotSupported: it is not.
        MalformedMessage: its metadata, which seem to ask for something else, cannot be read.
    """
    start, end = metadata_span
    is_suspect = payload.find(_DELIVER_AT_TIME, start, end) >= 0 or payload.find(_MARKER_TYPE, start, end) >= 0
    if not is_suspect and not send.marker:
        return
    metadata, _body = parse_payload(payload)
    if metadata.HasField("deliver_at_time"):
        raise NotSupported("delayed delivery is not served yet; send the message without a delivery time")
    if metadata.HasField("marker_type") or send.marker:
        raise NotSupported("markers are written by brokers; clients send messages")
