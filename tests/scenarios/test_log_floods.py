"""A client that repeats refused requests does not fill the log of a broker started as users start it."""

import socket
from pathlib import Path
from time import monotonic

from broker.log_limit import KIND_LINES_MAX
from tests.support.processes import running_broker

ATTEMPTS = 300


def test_refusals_are_logged_some_times_and_counted(tmp_path: Path) -> None:
    """E12: each attempt has its own line, or is in a count."""
    with running_broker(tmp_path / "data") as broker:
        start = monotonic()
        for _ in range(ATTEMPTS):
            with socket.create_connection(broker.pulsar) as connection:
                connection.sendall(b"\xff" * 64)
                while connection.recv(65536):
                    pass
        seconds = monotonic() - start
        broker.stop()
    lines = broker.stderr.splitlines()
    written = [line for line in lines if "connection broke the protocol" in line and "suppressed" not in line]
    counted = [int(line.rpartition("count=")[2].split()[0]) for line in lines if "log lines suppressed" in line]
    assert len(written) + sum(counted) == ATTEMPTS
    assert len(written) <= KIND_LINES_MAX * (seconds + 2)
