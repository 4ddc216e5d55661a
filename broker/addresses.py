"""Addresses that the broker listens on, and that it gives to clients: `HOST:PORT`, with IPv6 hosts in brackets."""

import ipaddress
import re
from typing import Final, NamedTuple, Self

NO_LISTENER: Final = "none"
"""What stands for the address of a listener that is left out."""

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


class Address(NamedTuple):
    """A TCP address. On a listener, port 0 lets the operating system choose a port."""

    host: str
    """An IP address without brackets, or a host name."""
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `127.0.0.1:6650`, `[::1]:6650` or `broker-1.example:6650`.

        Raises:
            ValueError: its text says what is wrong; it completes a sentence that names the address.
        """
        host, separator, port = text.rpartition(":")
        if not separator or not _PORT.fullmatch(port) or int(port) > 65535:
            raise ValueError("it must be HOST:PORT with a port from 0 to 65535")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if not isinstance(_ip(host), ipaddress.IPv6Address):
                raise ValueError("the host in brackets must be an IPv6 address")
        elif ":" in host:
            raise ValueError("an IPv6 host must be in brackets, as in [::1]:6650")
        elif not host:
            raise ValueError("the host is missing; give 127.0.0.1 for this machine alone, 0.0.0.0 for all its networks")
        elif _ip(host) is None and (len(host) > 253 or not _HOST_NAME.fullmatch(host)):
            raise ValueError("the host is neither an IP address nor a host name")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address. Of host names, only localhost counts as loopback."""
        ip = _ip(self.host)
        return self.host.lower() in {"localhost", "localhost."} if ip is None else ip.is_loopback

    @property
    def is_wildcard(self) -> bool:
        """Whether the host stands for all networks of the machine (0.0.0.0, ::). Nobody can connect to such a host."""
        ip = _ip(self.host)
        return ip is not None and ip.is_unspecified


class KafkaNode(NamedTuple):
    """A broker as Kafka's clients know it."""

    id: int
    """Its number. It keeps it as long as it keeps its broker id."""
    address: Address
    """Where clients reach it."""


def advertised_address(configured: Address | None, *, bound: Address, reached: Address) -> Address:
    """Return the address that a client should connect to, for example in a lookup response.

    Args:
        configured: the operator's setting, if any; port 0 stands for the listener's port.
        bound: the listener's address, with its real port.
        reached: the broker's end of the asking connection; it is the answer if the listener is on all networks.
    """
    if configured is not None:
        return configured if configured.port else Address(configured.host, bound.port)
    return Address(_plain_host(reached.host), bound.port) if bound.is_wildcard else bound


def _plain_host(host: str) -> str:
    # A socket that listens on :: shows IPv4 connections as ::ffff:192.0.2.1, which IPv4-only clients cannot read.
    ip = _ip(host)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return host if mapped is None else str(mapped)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
