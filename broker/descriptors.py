"""How many files the process may have open, and who may use how many of them.

A connection takes a descriptor each. If clients could take the last one, the next ledger file could not be opened. So
the ledgers, the journal, the metadata store and HTTP have theirs reserved, and clients get the rest.
"""

import resource
from typing import Final

import structlog

from storage.open_files import DESCRIPTORS_MAX as LEDGER_FILES_MAX

HTTP_CONNECTIONS_MAX: Final = 256
"""HTTP connections served at a time. One more takes the place of a client that is waited for, or is closed."""

RESERVED: Final = LEDGER_FILES_MAX + HTTP_CONNECTIONS_MAX + 128
"""For ledger files, HTTP, and all else: journal and metadata files, listeners, etcd, worker threads at their files."""

CONNECTIONS_MIN: Final = 32
"""Connections that must be possible at least, or a broker does not start."""

WANTED: Final = 65_536
"""Files that the process asks to be allowed to open."""

log = structlog.get_logger(__name__)


class TooFewDescriptors(Exception):
    """The process may not open enough files; the message says how to change that."""


def connections_possible() -> int:
    """Raise the limit of open files as far as allowed; how many connections fit beside what is reserved.

    Raises:
        TooFewDescriptors: hardly any do.
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
            f"The process may open {soft} files and needs at least {RESERVED + CONNECTIONS_MIN}: raise the limit with "
            "ulimit -n, or LimitNOFILE in its systemd unit."
        )
    return soft - RESERVED
