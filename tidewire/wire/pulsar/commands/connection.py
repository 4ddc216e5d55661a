"""Commands about the connection itself, and the two answers that fit any request."""

from typing import Final

from tidewire.wire.pulsar.frames import MAX_MESSAGE_SIZE
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_Type = pb.BaseCommand.Type

PROTOCOL_VERSION: Final = 21
"""The protocol version that we speak, as client and as broker."""


NO_REQUEST: Final = 2**64 - 1
"""A request id that no client uses, for an error that answers no request."""


def client_features() -> pb.FeatureFlags:
    """The features of every client that reads payloads through this package. A client adds its own."""
    return pb.FeatureFlags(
        supports_broker_entry_metadata=True,
        supports_get_partitioned_metadata_without_auto_creation=True,
    )


def broker_features() -> pb.FeatureFlags:
    """The features that clients of scalable topics require of a broker. A broker adds its own."""
    return pb.FeatureFlags(
        supports_get_partitioned_metadata_without_auto_creation=True,
        supports_scalable_topics=True,
        supports_tc_metadata_discovery=True,
    )


def connect(
    client_version: str,
    *,
    auth_method_name: str = "none",
    auth_data: bytes = b"",
    proxy_to_broker_url: str | None = None,
    features: pb.FeatureFlags | None = None,
) -> pb.BaseCommand:
    """A client's first command. Without `features`, it announces those of `client_features`."""
    content = pb.CommandConnect(
        client_version=client_version,
        auth_method_name=auth_method_name,
        auth_data=auth_data,
        protocol_version=PROTOCOL_VERSION,
        proxy_to_broker_url=proxy_to_broker_url,
        feature_flags=client_features() if features is None else features,
    )
    return pb.BaseCommand(type=_Type.CONNECT, connect=content)


def connected(
    server_version: str,
    *,
    protocol_version: int = PROTOCOL_VERSION,
    max_message_size: int = MAX_MESSAGE_SIZE,
    features: pb.FeatureFlags | None = None,
) -> pb.BaseCommand:
    """The broker's answer to CONNECT. Without `features`, it announces those of `broker_features`."""
    content = pb.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=max_message_size,
        feature_flags=broker_features() if features is None else features,
    )
    return pb.BaseCommand(type=_Type.CONNECTED, connected=content)


def auth_challenge(server_version: str, auth_method_name: str, data: bytes) -> pb.BaseCommand:
    """The broker asks for (fresh) credentials."""
    content = pb.CommandAuthChallenge(
        server_version=server_version,
        protocol_version=PROTOCOL_VERSION,
        challenge=pb.AuthData(auth_method_name=auth_method_name, auth_data=data),
    )
    return pb.BaseCommand(type=_Type.AUTH_CHALLENGE, auth_challenge=content)


def auth_response(client_version: str, auth_method_name: str, data: bytes) -> pb.BaseCommand:
    """The client's answer to AUTH_CHALLENGE."""
    content = pb.CommandAuthResponse(
        client_version=client_version,
        protocol_version=PROTOCOL_VERSION,
        response=pb.AuthData(auth_method_name=auth_method_name, auth_data=data),
    )
    return pb.BaseCommand(type=_Type.AUTH_RESPONSE, auth_response=content)


def ping() -> pb.BaseCommand:
    """Asks for a PONG; either side may."""
    return pb.BaseCommand(type=_Type.PING, ping=pb.CommandPing())


def pong() -> pb.BaseCommand:
    """The answer to PING."""
    return pb.BaseCommand(type=_Type.PONG, pong=pb.CommandPong())


def success(request_id: int, *, schema: pb.Schema | None = None) -> pb.BaseCommand:
    """The broker did what the request asked for."""
    return pb.BaseCommand(type=_Type.SUCCESS, success=pb.CommandSuccess(request_id=request_id, schema=schema))


def consumer_error(consumer_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """Tells a consumer, without a request, what happened to it.

    Clients that do not know this command log it and continue.
    """
    content = pb.CommandError(request_id=NO_REQUEST, error=code, message=message, consumer_id=consumer_id)
    return pb.BaseCommand(type=_Type.ERROR, error=content)


def error(request_id: int, code: pb.ServerError, message: str) -> pb.BaseCommand:
    """The broker refuses the request; `message` is for people."""
    content = pb.CommandError(request_id=request_id, error=code, message=message)
    return pb.BaseCommand(type=_Type.ERROR, error=content)
