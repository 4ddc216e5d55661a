"""Where a broker listens: the address in a URL of one, read and written in one way.

This module imports no codec, because Spark imports it wherever it looks for a data source.
"""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tidewire.protocol.errors import InvalidName

DEFAULT_PORT: Final = 6650


class BrokerAddress(NamedTuple):
    """Where a broker listens; written as `pulsar://HOST:PORT`."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """`HOST:PORT`, as a proxy is told which broker is meant."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"pulsar://{self.authority}"


def parse_address(url: str) -> BrokerAddress:
    """Read `pulsar://HOST[:PORT]`; the port is 6650 unless given.

    Raises:
        InvalidName: it is written otherwise, or asks for TLS, which the clients do not speak.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidName(f"{url!r} is not a broker address: {error}") from error
    if parts.scheme == "pulsar+ssl":
        raise InvalidName(f"{url!r} requires TLS, which this client does not support; use pulsar://")
    if parts.scheme != "pulsar" or not parts.hostname or parts.path.strip("/") or parts.query or parts.username:
        raise InvalidName(f"{url!r} is not a broker address; give it as pulsar://HOST:PORT")
    return BrokerAddress(parts.hostname, DEFAULT_PORT if port is None else port)
