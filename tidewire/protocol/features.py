"""Checks that a broker supports what a client needs. A broker announces its features in the handshake."""

from typing import Protocol

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import UnsupportedBroker
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Broker(Protocol):
    """A connection after its handshake."""

    @property
    def address(self) -> BrokerAddress:
        """The peer's address."""
        ...

    @property
    def features(self) -> pb.FeatureFlags:
        """The features that it announced."""
        ...


def require_scalable_topics(broker: Broker) -> None:
    """Check that the broker supports `topic://` topics.

    Raises:
        UnsupportedBroker: it does not support them.
    """
    if not broker.features.supports_scalable_topics:
        raise UnsupportedBroker(f"{broker.address} does not support scalable topics (topic://)")


def require_transactions(broker: Broker) -> None:
    """Check that the broker supports transactions on scalable topics: it tells clients who coordinates them.

    Raises:
        UnsupportedBroker: it does not support them.
    """
    if not broker.features.supports_tc_metadata_discovery:
        raise UnsupportedBroker(f"{broker.address} does not support transactions on scalable topics")
