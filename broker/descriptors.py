"""How many files the process may open, and how they are shared out.

Each connection takes a descriptor. If clients could take the last one, the next ledger file could not be opened. So
descriptors are reserved for the ledgers, the journal, the metadata store and HTTP, and clients get the rest.
"""

import resource
from typing import Final

import structlog

from broker.errors import StartError
from storage.open_files import DESCRIPTORS_MAX as LEDGER_FILES_MAX

HTTP_CONNECTIONS_MAX: Final = 256
"""Most HTTP connections at a time. A further one replaces a connection that waits for its client, or is closed."""

RESERVED: Final = LEDGER_FILES_MAX + HTTP_CONNECTIONS_MAX + 128
"""Reserved for ledger files, HTTP and the rest: journal, metadata, listeners, etcd, files of worker threads."""

CONNECTIONS_MIN: Final = 32
"""A broker does not start unless it can serve this many connections."""

WANTED: Final = 65_536
"""The limit on open files that the process requests."""

log = structlog.get_logger(__name__)


class TooFewDescriptors(StartError):
    """The process may not open enough files; the message says how to change that."""


def connections_possible() -> int:
    """Raise the limit on open files as far as allowed. Return how many connections fit besides the reserved files.

    Raises:
        TooFewDescriptors: fewer than CONNECTIONS_MIN fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = WANTED
    if soft < RESERVED + CONNECTIONS_MIN:
        raise TooFewDescriptors(
            f"The process may open {soft} files but needs at least {RESERVED + CONNECTIONS_MIN}. Raise the limit with "
            "ulimit -n, or with LimitNOFILE in its systemd unit."
        )
    return soft - RESERVED
