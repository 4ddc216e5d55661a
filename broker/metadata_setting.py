"""The setting `metadata`: `embedded`, or `etcd://HOST:PORT` with further servers of the same cluster behind commas."""

from typing import Final

from broker.addresses import Address

EMBEDDED: Final = "embedded"
ETCD: Final = "etcd://"


def check_metadata(value: object) -> str:
    """The setting in its one form.

    Raises:
        ValueError: with what is wrong, as the end of a sentence that names the value.
    """
    if value == EMBEDDED:
        return EMBEDDED
    if not isinstance(value, str) or not value.startswith(ETCD):
        raise ValueError("it must be 'embedded' or etcd://HOST:PORT, with further servers behind commas")
    return ETCD + ",".join(str(server) for server in etcd_servers(value))


def etcd_servers(value: str) -> tuple[Address, ...]:
    """The servers that `etcd://...` names.

    Raises:
        ValueError: one of them is no HOST:PORT.
    """
    servers = tuple(Address.parse(server.strip()) for server in value.removeprefix(ETCD).rstrip("/").split(","))
    if any(server.port == 0 for server in servers):
        raise ValueError("a server of etcd has a port from 1 to 65535")
    return servers
