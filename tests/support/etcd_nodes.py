"""A real etcd cluster of three processes on loopback, whose members can be killed and stopped one by one.

    with EtcdNodes(folder, command) as etcd:
        etcd.endpoints                # {"etcd-1": "127.0.0.1:40311", ...}
        name = etcd.leader()
        etcd.nodes[name].kill()       # kill -9; the others elect another leader
        etcd.nodes[name].start()      # same data, same address

All methods block.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self

from tidewire.cli.local_etcd import EtcdProcess, Membership, free_port

NAMES: Final = ("etcd-1", "etcd-2", "etcd-3")

STATUS_SECONDS_MAX: Final = 2.0
"""How long one member may take to say who leads. A stopped one never does."""

ELECTION_SECONDS_MAX: Final = 30.0


class EtcdNodes:
    """See the module's docstring."""

    def __init__(self, folder: Path, command: str) -> None:
        """Set up; nothing runs yet. `command` is the program."""
        ports = {name: free_port() for name in NAMES}
        self.nodes = {
            name: EtcdProcess(folder / name, command=command, membership=Membership(name, ports)) for name in NAMES
        }

    @property
    def endpoints(self) -> dict[str, str]:
        """Where clients connect to, by member."""
        return {name: node.endpoint for name, node in self.nodes.items()}

    def start(self, names: Iterable[str] = NAMES) -> None:
        """Start members together. They serve when this returns.

        Raises:
            EtcdFailed: one of them did not start.
        """
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda name: self.nodes[name].start(), names))

    def wait_leader(self, name: str) -> None:
        """Return once this member has a leader. It answers a read no earlier, or gives the read up after seconds.

        Raises:
            OSError: there was none within ELECTION_SECONDS_MAX.
        """
        deadline = monotonic() + ELECTION_SECONDS_MAX
        while True:
            try:
                self._ask(name, "kv/range", b'{"key": "AA=="}', ELECTION_SECONDS_MAX)
            except urllib.error.HTTPError:
                if monotonic() > deadline:
                    raise
            else:
                return

    def leader(self) -> str | None:
        """Return the member that leads, as the first one that knows says; None if none knows."""
        statuses = {}
        for name in NAMES:
            with suppress(OSError):
                statuses[name] = self._status(name)
        leaders = {said["leader"] for said in statuses.values() if "leader" in said}
        found = [name for name, said in statuses.items() if said["header"]["member_id"] in leaders]
        return found[0] if found else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()

    def _status(self, name: str) -> dict[str, Any]:
        return self._ask(name, "maintenance/status", b"{}", STATUS_SECONDS_MAX)

    def _ask(self, name: str, what: str, body: bytes, seconds_max: float) -> dict[str, Any]:
        url = f"http://{self.nodes[name].endpoint}/v3/{what}"
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=seconds_max) as said:
            answer: dict[str, Any] = json.loads(said.read())
        return answer
