"""The setting `metadata`: `embedded`, or `etcd://HOST:PORT[,HOST:PORT]` with the servers of one etcd cluster."""

from typing import Final

from broker.addresses import Address

EMBEDDED: Final = "embedded"
ETCD: Final = "etcd://"


def check_metadata(value: object) -> str:
    """Return the setting in its canonical form.

    Raises:
        ValueError: its text says what is wrong; it completes a sentence that names the value.
    """
    if value == EMBEDDED:
        return EMBEDDED
    if not isinstance(value, str) or not value.startswith(ETCD):
        raise ValueError("it must be embedded, or etcd://HOST:PORT with further servers separated by commas")
    return ETCD + ",".join(str(server) for server in etcd_servers(value))


def etcd_servers(value: str) -> tuple[Address, ...]:
    """Return the servers that `etcd://...` names.

    Raises:
        ValueError: one of them is not HOST:PORT.
    """
    servers = tuple(Address.parse(server.strip()) for server in value.removeprefix(ETCD).rstrip("/").split(","))
    if any(server.port == 0 for server in servers):
        raise ValueError("an etcd server's port must be from 1 to 65535")
    return servers
