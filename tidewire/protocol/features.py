"""What a client needs of a broker besides the oldest commands. The broker announces it when it is greeted."""

from typing import Protocol

from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.errors import UnsupportedBroker
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb


class Broker(Protocol):
    """A connection that was welcomed."""

    @property
    def address(self) -> BrokerAddress:
        """Who is at the other end."""
        ...

    @property
    def features(self) -> pb.FeatureFlags:
        """What it announced."""
        ...


def require_scalable_topics(broker: Broker) -> None:
    """See that the broker knows topics of kind `topic://`.

    Raises:
        UnsupportedBroker: it does not.
    """
    if not broker.features.supports_scalable_topics:
        raise UnsupportedBroker(f"{broker.address} does not support scalable topics (topic://)")


def require_transactions(broker: Broker) -> None:
    """See that the broker tells who coordinates the transactions of scalable topics.

    Raises:
        UnsupportedBroker: it does not.
    """
    if not broker.features.supports_tc_metadata_discovery:
        raise UnsupportedBroker(f"{broker.address} does not support transactions of scalable topics")
