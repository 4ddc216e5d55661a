"""The address of a broker, and how its URL is parsed and printed.

This module imports no codec, because Spark imports it whenever it looks for a data source.
"""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tidewire.protocol.errors import InvalidName

DEFAULT_PORT: Final = 6650


class BrokerAddress(NamedTuple):
    """Where a broker listens. As text it is `pulsar://HOST:PORT`."""

    host: str
    port: int

    @property
    def authority(self) -> str:
        """`HOST:PORT`, the form in which a proxy is told the broker's address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"pulsar://{self.authority}"


def parse_address(url: str) -> BrokerAddress:
    """Parse `pulsar://HOST[:PORT]`. The default port is 6650.

    Raises:
        InvalidName: the text has another form, or requires TLS, which the clients do not support.
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
