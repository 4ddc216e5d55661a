"""The addresses of brokers: how their URLs are parsed and printed, and which of several to try next.

This module imports no codec, because Spark imports it whenever it looks for a data source.
"""

from collections.abc import Sequence
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


def parse_addresses(url: str) -> tuple[BrokerAddress, ...]:
    """Parse `pulsar://HOST[:PORT],HOST[:PORT]`, the brokers of one cluster that a client may ask first. At least one.

    Raises:
        InvalidName: as `parse_address`, for the first address that is wrong.
    """
    scheme, separator, hosts = url.partition("://")
    return tuple(dict.fromkeys(parse_address(f"{scheme}{separator}{host}") for host in hosts.split(",")))


class ServiceAddresses:
    """The brokers that a client may ask first, of which it uses one until that one cannot be reached."""

    def __init__(self, addresses: Sequence[BrokerAddress]) -> None:
        """Begin with the first of the addresses; there must be one."""
        self._addresses: Final = tuple(addresses)
        self._used = 0

    def __len__(self) -> int:
        return len(self._addresses)

    def __contains__(self, address: BrokerAddress) -> bool:
        return address in self._addresses

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    @property
    def current(self) -> BrokerAddress:
        """The address to use now."""
        return self._addresses[self._used]

    def failed(self, address: BrokerAddress) -> None:
        """Go on to the next address if `address` is still the current one; after the last comes the first."""
        if address == self.current:
            self._used = (self._used + 1) % len(self._addresses)
