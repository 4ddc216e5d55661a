"""A real etcd for tests, and separate stores on it.

    async with etcd_store(etcd_server.endpoint) as store: ...          # a store with its own root
    held = HeldBack(store)                                             # its image lags, until held.let_go()

The fixture `etcd_server` (tests/conftest.py) starts one etcd for the whole run. A test that kills or stops etcd starts
its own `EtcdProcess`. Nothing is installed here: `scripts/need.py etcd` does that, and `make check` begins with it. If
etcd is missing, these tests fail with a message, because a suite that skips them shows nothing about etcd.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import count
from pathlib import Path

from scripts.need import place
from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.store import EtcdStore
from tidewire.cli.local_etcd import EtcdProcess

_roots = count()


@contextmanager
def running_etcd(folder: Path) -> Iterator[EtcdProcess]:
    """Run an etcd with its data in `folder`.

    Raises:
        NeedError: etcd is not installed; the message has the command that installs it.
    """
    with EtcdProcess(folder, command=str(place("etcd"))) as etcd:
        yield etcd


def fresh_root() -> str:
    """Return a root that no other test of this run uses."""
    return f"/tests/{next(_roots)}"


def etcd_store(endpoint: str, *, root: str | None = None) -> AbstractAsyncContextManager[EtcdStore]:
    """Open a store on `endpoint`, below its own root if none is given."""
    return EtcdStore.open([endpoint], root=fresh_root() if root is None else root)


class HeldBack:
    """Holds back the events of a store's watch until `let_go`."""

    def __init__(self, store: EtcdStore) -> None:
        self._follower = store._follower
        self._apply = self._follower._apply
        self._steps: list[tuple[int, list[pb.Event]]] = []
        self._follower._apply = self._hold  # type: ignore[method-assign]

    def _hold(self, revision: int, events: Iterable[pb.Event]) -> None:
        self._steps.append((revision, list(events)))
        # It has come no further than to the first of what is held.
        self._follower._next_revision = self._steps[0][0]

    def let_go(self) -> None:
        for revision, events in self._steps:
            self._follower._next_revision = revision + 1
            self._apply(revision, events)
        self._follower._apply = self._apply  # type: ignore[method-assign]
