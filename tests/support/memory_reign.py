"""The committer of a reign over a store in memory: as `Reign`, without a disk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import trio

from storage.errors import fresh
from storage.metadata import transactions
from storage.metadata.batches import BEGINNING, Body, Point, encode_batches, pack
from storage.metadata.chain import LogName, OffChain
from storage.metadata.cluster.answers import made_in_steps
from storage.metadata.cluster.arrivals import Arrivals, Verdict
from storage.metadata.cluster.leading import LinkFeed
from storage.metadata.cluster.messages import Place
from storage.metadata.delta import Delta
from storage.metadata.image import Written
from storage.metadata.memory import MemoryStore
from storage.metadata.outcomes import Made, WriteId
from storage.metadata.pacing import paced
from storage.metadata.proposed import Commit, Proposed, decide
from storage.metadata.record_codec import encode
from storage.metadata.records import EPOCHS_LEVEL, TakeOver
from storage.metadata.snapshots import View
from storage.metadata.store import Committed, MetadataError


class Appended(NamedTuple):
    """See `leading.Appended`."""

    data: bytes
    offset: int
    after: Point


class MemoryReign(MemoryStore):
    """See the module's docstring. Also the controller's own store."""

    def __init__(self, epoch: int = 1) -> None:
        super().__init__()
        self.epoch = epoch
        self.image = self._image
        self.point = BEGINNING
        self.ring_bytes = 16 * 1024 * 1024
        self.hold: trio.Event | None = None
        """Before a numbered write is decided, it waits for this."""
        self._offset = 0
        self._ring: list[Appended] = []
        self._feeds: list[LinkFeed] = []
        self._views: list[View] = []
        self._lock = trio.Lock()
        self._arrivals = Arrivals(self.image.outcomes)
        self._shared: dict[tuple[int, int], _Decision] = {}
        delta = Delta(self.image)
        delta.set_feature_level(EPOCHS_LEVEL)
        delta.change_sets.append([TakeOver(0, epoch, "b1", None)])
        for change_set in delta.change_sets:
            self.image.apply(change_set)
        self._append(pack([[encode(r) for c in delta.change_sets for r in c]]))

    def require_reigning(self) -> None:
        pass

    def _append(self, bodies: Sequence[Body]) -> Appended:
        data, last = encode_batches(self.point, bodies, confirmed=self.point.sequence, offset=self._offset)
        appended = Appended(data, self._offset, self.point)
        self._offset += len(data)
        self.point = last
        self._ring.append(appended)
        while sum(len(each.data) for each in self._ring) > self.ring_bytes:
            self._ring.pop(0)
        return appended

    def _push(self, appended: Appended) -> None:
        for feed in list(self._feeds):
            feed.batches(appended)

    async def _decide(self, proposed: Proposed) -> Committed:
        return await self.propose(proposed)

    async def propose(self, proposed: Proposed) -> Committed:
        return await self._make(proposed, None)

    async def _make(self, proposed: Proposed, write: WriteId | None) -> Committed:
        async with self._lock:
            delta = Delta(self.image)
            committed = await paced(decide(proposed, delta))
            if write is not None and delta.change_sets:
                ops = proposed.ops if isinstance(proposed, Commit) else ()
                delta.answer(write, await paced(made_in_steps(ops, committed)))
            with trio.CancelScope(shield=True):
                for change_set in delta.change_sets:
                    if transactions.fits_one_batch(change_set):
                        appended = self._append(pack([[encode(record) for record in change_set]]))
                        await self.show(change_set, self._note)
                        self._push(appended)
                    else:
                        for bodies in transactions.pieces("large", change_set):
                            await trio.lowlevel.checkpoint()
                            self._push(self._append(bodies))
                        await self.show(change_set, self._note)
            return committed

    def _note(self, written: list[Written]) -> None:
        for view in self._views:
            view.note(written)

    async def propose_once(self, proposed: Proposed, write: WriteId, *, along: bool = False) -> Made | None:
        taken = self._arrivals.take(write)
        if isinstance(taken, Made):
            return taken
        if taken is Verdict.DROP:
            return None
        key = (write.session, write.number)
        if taken is Verdict.DECIDE:
            self._shared[key] = decision = _Decision()
            # Whoever waits may leave.
            trio.lowlevel.spawn_system_task(self._decide_once, proposed, write, decision)
        else:
            decision = self._shared[key]
        await decision.done.wait()
        if decision.error is not None:
            raise fresh(decision.error)
        return decision.made

    async def _decide_once(self, proposed: Proposed, write: WriteId, decision: "_Decision") -> None:
        if self.hold is not None:
            await self.hold.wait()
        ops = proposed.ops if isinstance(proposed, Commit) else ()
        try:
            decision.made = await paced(made_in_steps(ops, await self._make(proposed, write)))
        except MetadataError as error:
            decision.error = error
        self._arrivals.decided(write)
        del self._shared[write.session, write.number]
        decision.done.set()

    async def attach(self, feed: LinkFeed) -> Place:
        async with self._lock:
            pass
        self._feeds.append(feed)
        return Place(self.epoch, self.point, self.image.revision)

    def detach(self, feed: LinkFeed) -> None:
        self._feeds.remove(feed)

    def log_behind(self, place: Place) -> list[Appended] | None:
        if place.point == self.point:
            return []
        for number, appended in enumerate(self._ring):
            if appended.after == place.point:
                return self._ring[number:]
        if place.point.sequence > self.point.sequence:
            raise OffChain(place.point, LogName(self.epoch, 1, is_closed=False))
        return None

    @contextmanager
    def view(self) -> Iterator[View]:
        view = View(self.image, self.point)
        self._views.append(view)
        try:
            yield view
        finally:
            self._views.remove(view)


class _Decision:
    """What becomes of a numbered write."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.made: Made | None = None
        self.error: MetadataError | None = None
