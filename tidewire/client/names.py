"""The little the client has to know about names: whose kind they are. Everything else about them the broker checks."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tidewire.protocol.errors import InvalidName

DEFAULT_PORT: Final = 6650

_SCALABLE: Final = "topic://"
_PERSISTENT: Final = "persistent://"


class BrokerUrl(NamedTuple):
    """Where a broker listens, as `pulsar://HOST:PORT`."""

    host: str
    port: int

    def __str__(self) -> str:
        """The address as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"pulsar://{host}:{self.port}"


def parse_broker_url(url: str) -> BrokerUrl:
    """Read `pulsar://HOST[:PORT]`; the port is 6650 unless given.

    Raises:
        InvalidName: it is written otherwise, or asks for TLS, which this client does not speak.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidName(f"{url!r} is no broker address: {error}") from error
    if parts.scheme == "pulsar+ssl":
        raise InvalidName(f"{url!r}: this client does not speak TLS; use pulsar://")
    if parts.scheme != "pulsar" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidName(f"{url!r} is no broker address; expected pulsar://HOST:PORT")
    return BrokerUrl(parts.hostname, DEFAULT_PORT if port is None else port)


def is_scalable(topic: str) -> bool:
    """Whether the name is a scalable topic's; if not it is a `persistent://` one.

    Raises:
        InvalidName: it begins with neither.
    """
    if topic.startswith(_SCALABLE):
        return True
    if topic.startswith(_PERSISTENT):
        return False
    raise InvalidName(f"{topic!r} is no topic name; expected topic://TENANT/NAMESPACE/NAME or persistent://...")


def segment_topic(topic: str, hash_start: int, hash_end: int, segment_id: int) -> str:
    """The name of a scalable topic's segment: `segment://public/default/x/8000-ffff-1`."""
    assert topic.startswith(_SCALABLE), topic
    return f"segment://{topic.removeprefix(_SCALABLE)}/{hash_start:04x}-{hash_end:04x}-{segment_id}"


def partition_topic(topic: str, index: int) -> str:
    """The name of one partition of a partitioned topic."""
    return f"{topic}-partition-{index}"
