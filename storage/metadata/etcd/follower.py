"""This process's image of the records in etcd, followed through one watch.

All watches of the contract use the image, as in the other stores. So one stream serves any number of them, and a change
set reaches them in one step. The stream resumes at the revision after the last one applied, on any server and after any
pause. If etcd has forgotten that revision (compaction), the follower lists everything again and applies the difference
to the image as one change (M14, M15). Broken streams are reopened after RETRY_DELAYS.

A task that needs the image to hold a revision waits for it with `reached`. It sends no request meanwhile.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import count, groupby
from operator import attrgetter
from typing import Final

import structlog
import trio

from storage.metadata.etcd.generated import etcd_pb2 as pb
from storage.metadata.etcd.keys import COUNTER, RECORD, SESSION, Keys
from storage.metadata.etcd.requests import Counter
from storage.metadata.etcd.retry import ATTEMPT_SECONDS_MAX, RETRY_DELAYS, Retry
from storage.metadata.etcd.rpc import RANGE, Rpc
from storage.metadata.image import Image, LiveSession, Written
from storage.metadata.records import Deletion
from storage.metadata.store import Record, StoreUnavailable
from storage.metadata.watches import Watches

LISTED_AT_ONCE: Final = 1000
"""Keys in one page of a listing."""

log = structlog.get_logger(__name__)


class StoreRolledBack(Exception):
    """etcd is another cluster, or was restored to an older state. The image cannot continue from it."""


class Follower:
    """The image, and the task that keeps it current."""

    def __init__(self, rpc: Rpc, keys: Keys, retry: Retry) -> None:
        self.image = Image()
        self.watches = Watches(self.image)
        self.counter = Counter(0, 0)
        """The counter of sequential puts, as the image has it."""
        self.resumed = 0
        """How often the stream was reopened."""
        self.listed = 0
        """How often everything was listed."""
        self._rpc = rpc
        self._keys = keys
        self._retry = retry
        self._sessions: dict[int, int] = {}
        """The revision at which each open session began, by its lease."""
        self._cluster_id = 0
        self._created = 0
        self._next_revision = 0
        self._waiting: list[tuple[int, int, trio.Event]] = []
        self._order = count()
        self._session_ends: dict[int, trio.Event] = {}
        self._is_compacted = False
        self._cancel_reason = ""
        self._reversed: StoreRolledBack | None = None

    async def start(self) -> None:
        """Fill the image. Call it once, before `run`.

        Raises:
            StoreUnavailable: etcd cannot be reached.
        """
        await self._require_same_state()
        await self._list()
        self.image.settle()

    async def run(self) -> None:
        """Follow until cancelled.

        Raises:
            StoreRolledBack: etcd's state is older than the image's, or another cluster's.
        """
        delays = iter(RETRY_DELAYS)
        while True:
            before = self._next_revision
            if self._is_compacted:
                log.warning("etcd has compacted the next revision; listing everything again", revision=before)
                try:
                    await self._list()
                except StoreUnavailable as unavailable:
                    # Callers that wait for an answer get the error from their own calls. The image is kept.
                    log.warning("etcd cannot be listed", reason=str(unavailable))
                    # A refusal comes at once.
                    await trio.sleep(RETRY_DELAYS[-1])
                    continue
            span = self._keys.followed
            # One revision more than needed. If etcd was compacted to exactly the next revision, etcd 3.4 accepts the
            # watch and omits the deletions of that revision. Asked from before it, etcd reports the compaction.
            create = pb.WatchCreateRequest(
                key=span.start, range_end=span.end, start_revision=max(1, self._next_revision - 1)
            )
            asked = self._rpc.current
            error = await self._rpc.watch(create, self._receive, seconds_max=ATTEMPT_SECONDS_MAX)
            if self._reversed is not None:
                raise self._reversed
            if not self._is_compacted:
                self.resumed += 1
                self._rpc.turn(asked)
                if self._next_revision != before:
                    delays = iter(RETRY_DELAYS)
                delay = next(delays, RETRY_DELAYS[-1])
                log.info(
                    "the watch on etcd broke off", reason=str(error or self._cancel_reason), again_in_seconds=delay
                )
                await trio.sleep(delay)
                await self._require_same_state()

    async def reached(self, revision: int) -> None:
        """Return once the image holds the effects of every change set up to `revision`.

        A followed key, such as the tip, must have changed at `revision` or later.
        """
        if self.followed_until >= revision:
            await trio.lowlevel.checkpoint()
            return
        event = trio.Event()
        heapq.heappush(self._waiting, (revision, next(self._order), event))
        await event.wait()

    @property
    def followed_until(self) -> int:
        """The newest revision of etcd that this process knows."""
        return self._next_revision - 1

    def require_no_older(self, header: pb.ResponseHeader, known: int) -> None:
        """Check the header of a linearizable answer against what was known before the request.

        Raises:
            StoreRolledBack: the answer is from another cluster, or older.
        """
        self._require_same_cluster(header)
        if header.revision < known:
            raise StoreRolledBack(
                f"etcd is at revision {header.revision}, but was at {known}: an older state was restored"
            )

    def sessions_until(self, revision: int) -> Iterator[int]:
        """The sessions in the image that began at or before `revision`."""
        return (lease for lease, began in self._sessions.items() if began <= revision)

    async def session_gone(self, lease: int) -> None:
        """Return once the image no longer holds that session and its records."""
        if lease not in self._sessions:
            await trio.lowlevel.checkpoint()
            return
        await self._session_ends.setdefault(lease, trio.Event()).wait()

    def _receive(self, response: pb.WatchResponse) -> bool:
        """Apply one answer of the stream. False ends the stream."""
        try:
            # A lagging member may answer a watch from an older revision. It sends the newer revisions later.
            self._require_same_cluster(response.header)
        except StoreRolledBack as error:
            self._reversed = error
            return False
        if response.canceled:
            self._is_compacted = response.compact_revision > 0
            self._cancel_reason = response.cancel_reason
            return False
        for revision, events in groupby(response.events, key=attrgetter("kv.mod_revision")):
            if revision >= self._next_revision:
                self._next_revision = revision + 1
                self._apply(revision, list(events))
        return True

    def _apply(self, revision: int, events: Iterable[pb.Event]) -> None:
        image = self.image
        written: list[Written] = []
        ended: list[int] = []
        for event in events:
            stored = event.kv
            section = self._keys.section_of(stored.key)
            is_put = event.type == pb.Event.PUT
            if section == RECORD:
                if is_put:
                    written += image.apply((self._keys.decode(stored),))
                elif (key := self._keys.record_key(stored.key)) in image.records:
                    written += image.apply((Deletion(revision, key),))
            elif section == SESSION:
                lease = self._keys.lease_of(stored.key)
                if is_put:
                    self._begin_session(lease, revision)
                else:
                    ended.append(lease)
            elif section == COUNTER and is_put:
                self.counter = Counter(int(stored.value), revision)
        # The deletions of their records are in the same step and look for them.
        for lease in ended:
            self._end_session(lease)
        self._show(revision, written)

    def _show(self, revision: int, written: list[Written]) -> None:
        if written:
            self.image.revision = revision
            self.watches.fire(revision, written)
        while self._waiting and self._waiting[0][0] <= self.followed_until:
            heapq.heappop(self._waiting)[2].set()

    async def _list(self) -> None:
        """Replace the image's content by the current records, as one change."""
        known = self.followed_until
        header, stored = await self._read_all()
        self.require_no_older(header, known)
        self.listed += 1
        records: list[Record] = []
        sessions: dict[int, int] = {}
        newest = 0
        for item in stored:
            newest = max(newest, item.mod_revision)
            section = self._keys.section_of(item.key)
            if section == RECORD:
                records.append(self._keys.decode(item))
            elif section == SESSION:
                sessions[self._keys.lease_of(item.key)] = item.mod_revision
            elif section == COUNTER:
                self.counter = Counter(int(item.value), item.mod_revision)
        for lease, began in sessions.items():
            self._begin_session(lease, began)
        written = self._replace(header.revision, records)
        for lease in [lease for lease in self._sessions if lease not in sessions]:
            self._end_session(lease)
        self._next_revision = header.revision + 1
        self._is_compacted = False
        if self.listed == 1:
            self.image.revision = newest
        self._show(header.revision, written)

    def _replace(self, revision: int, records: list[Record]) -> list[Written]:
        image = self.image
        before = image.revision
        if not image.records:
            image.load(records)
            image.settle()
            written = [Written(record.key, None, record) for record in records] if self.listed > 1 else []
        else:
            there = {record.key for record in records}
            written = image.apply([Deletion(revision, key) for key in image.records if key not in there])
            for record in records:
                old = image.records.get(record.key)
                if old is None or old.version != record.version:
                    written += image.apply((record,))
        image.revision = before
        return written

    async def _read_all(self) -> tuple[pb.ResponseHeader, list[pb.KeyValue]]:
        """All followed keys at one revision, and the header of the first page."""
        while True:
            span = self._keys.followed
            request = pb.RangeRequest(key=span.start, range_end=span.end, limit=LISTED_AT_ONCE)
            first = await self._retry.repeat(RANGE, request)
            stored = list(first.kvs)
            page = first
            while page.more:
                request = pb.RangeRequest(
                    key=stored[-1].key + b"\0",
                    range_end=span.end,
                    limit=LISTED_AT_ONCE,
                    revision=first.header.revision,
                )
                following = await self._retry.repeat_unless_compacted(RANGE, request)
                if following is None:
                    break
                page = following
                stored += page.kvs
            else:
                return first.header, stored

    async def _require_same_state(self) -> None:
        """Check that the answering etcd has the followed state. Otherwise a watch would wait for past revisions."""
        known = self.followed_until
        try:
            answer = await self._retry.repeat(RANGE, pb.RangeRequest(key=self._keys.format))
        except StoreUnavailable as unavailable:
            log.warning("etcd cannot be asked", reason=str(unavailable))
            return
        self.require_no_older(answer.header, known)
        created = answer.kvs[0].create_revision if answer.kvs else 0
        if self._created not in (0, created):
            raise StoreRolledBack("the records below the root in etcd were removed, or made again")
        self._created = created

    def _require_same_cluster(self, header: pb.ResponseHeader) -> None:
        if self._cluster_id not in (0, header.cluster_id):
            raise StoreRolledBack("the answering etcd cluster is not the one that this process started with")
        self._cluster_id = header.cluster_id

    def _begin_session(self, lease: int, revision: int) -> None:
        self._sessions[lease] = revision
        self.image.sessions.setdefault(lease, LiveSession(0, {}))

    def _end_session(self, lease: int) -> None:
        self._sessions.pop(lease, None)
        self.image.sessions.pop(lease, None)
        ends = self._session_ends.pop(lease, None)
        if ends is not None:
            ends.set()
