"""Examines the cluster that a broker belongs to: collects the facts twice, and reports what both looks found.

The second look comes SECOND_LOOK_SECONDS later, and only if the first one found something. The facts are read from the
metadata store in slices, from the data folder in a worker thread, and from each other broker by one request. Each of
the three may be silent. The report says so after a while, and judges what the others said.
"""

from pathlib import Path
from typing import Any, Final

import structlog
import trio

from broker.administration_contract import BrokerMonitor
from broker.cluster.members import Members
from broker.doctor.facts import Facts, Told
from broker.doctor.findings import examine, lasting
from broker.doctor.folder import FolderRead, read_folder
from broker.doctor.records import PREFIXES, RecordReader
from broker.doctor.report import Report
from broker.errors import sentences
from broker.live_contract import LiveService
from broker.peers import PeerRefused, Peers, PeerSilent
from broker.unread import unread_in
from storage.clock import WallClock
from storage.files import Files
from storage.metadata.store import MetadataStore, StoreUnavailable, starting_with

SELF_PATH: Final = "/admin/v2/cluster/doctor/self"
SECOND_LOOK_SECONDS: Final = 3.0
"""Longer than an owner needs between a record and its file, and a sweep between an end and its records."""
PLACE_SECONDS_MAX: Final = 8.0
"""How long the data folder may take, and the metadata store for each page. The client waits for 30 seconds in all."""
RECORDS_AT_ONCE: Final = 256
"""Records that are decoded in one step of the event loop, which takes about 5 ms."""
ANSWER_SECONDS_MAX: Final = 5.0
"""How long another broker may take to say how it is."""

log = structlog.get_logger(__name__)


class Examination:
    """Implements `DoctorService`."""

    def __init__(
        self,
        metadata: MetadataStore,
        files: Files,
        data_dir: Path,
        members: Members,
        peers: Peers,
        monitor: BrokerMonitor,
        live: LiveService,
        now_ms: WallClock,
        *,
        me: str,
        coordinators: int,
    ) -> None:
        """Set up; `me` is the id of this broker, and `coordinators` their number in its settings."""
        self._metadata = metadata
        self._files = files
        self._data_dir = data_dir
        self._members = members
        self._peers = peers
        self._monitor = monitor
        self._live = live
        self._now_ms = now_ms
        self._me = me
        self._coordinators = coordinators
        self._examining = trio.Lock()

    async def examine(self) -> dict[str, Any]:
        """See `DoctorService`."""
        async with self._examining:
            facts = await self._facts()
            # In a thread: of a large cluster, all clients would wait for the judgement.
            findings = await trio.to_thread.run_sync(examine, facts)
            if findings and facts.records is not None:
                await trio.sleep(SECOND_LOOK_SECONDS)
                facts = await self._facts()
                findings = lasting(findings, await trio.to_thread.run_sync(examine, facts))
            return await trio.to_thread.run_sync(Report(facts, findings).as_json)

    def tell(self) -> dict[str, Any]:
        """See `DoctorService`."""
        statistics = self._metadata.statistics()
        return {
            "nowMs": self._now_ms(),
            "revision": statistics.revision,
            "coordinators": self._coordinators,
            "problem": self._monitor.problem(),
            "store": dict(statistics.extra),
            "unread": self._live.unread().as_json(),
        }

    async def _facts(self) -> Facts:
        reader = RecordReader(self._now_ms())
        unread = ""
        try:
            for prefix in PREFIXES:
                await self._read(reader, prefix)
        except StoreUnavailable as failed:
            unread = sentences(failed)
        except trio.TooSlowError:
            unread = f"It has not answered for {PLACE_SECONDS_MAX:.0f} seconds."
        folder: FolderRead | None = None
        unread_folder = ""
        try:
            with trio.fail_after(PLACE_SECONDS_MAX):
                folder = await self._files.look(read_folder, self._files, self._data_dir)
        except OSError as failed:
            unread_folder = sentences(failed)
        except trio.TooSlowError:
            unread_folder = f"It has not answered for {PLACE_SECONDS_MAX:.0f} seconds."
        return Facts(
            records=None if unread else reader.facts,
            unread=unread,
            data_dir=str(self._data_dir),
            folder=None if folder is None else folder.facts,
            unread_folder=unread_folder,
            misfits={} if folder is None or unread else folder.misfits(reader.journals),
            told=await self._ask_all(),
        )

    async def _read(self, reader: RecordReader, prefix: str) -> None:
        start, end = starting_with(prefix)
        while True:
            with trio.fail_after(PLACE_SECONDS_MAX):
                records = await self._metadata.scan(start, end, limit=RECORDS_AT_ONCE)
            if not records:
                return
            for record in records:
                reader.take(prefix, record)
            start = records[-1].key + "\0"
            await trio.lowlevel.checkpoint()

    async def _ask_all(self) -> dict[str, Told | None]:
        told: dict[str, Told | None] = {self._me: told_in(self.tell(), self._now_ms())}

        async def ask(broker: str) -> None:
            told[broker] = await self._ask(broker)

        async with trio.open_nursery() as nursery:
            for broker in self._members.live:
                if broker != self._me:
                    nursery.start_soon(ask, broker)
        return told

    async def _ask(self, broker: str) -> Told | None:
        asked_ms = self._now_ms()
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            try:
                answer = await self._peers.request(broker, "GET", SELF_PATH)
                return told_in(answer, (asked_ms + self._now_ms()) // 2)
            except (PeerSilent, PeerRefused, KeyError, TypeError, ValueError) as failed:
                log.info("a broker did not tell the doctor how it is", broker=broker, reason=str(failed))
        return None


def told_in(answer: dict[str, Any], asked_ms: int) -> Told:
    """Return what a broker told; `asked_ms` is this broker's time when the other one answered.

    Raises:
        KeyError, TypeError, ValueError: another program answered.
    """
    problem = answer["problem"]
    return Told(
        int(answer["nowMs"]) - asked_ms,
        int(answer["revision"]),
        int(answer["coordinators"]),
        None if problem is None else str(problem),
        dict(answer["store"]),
        unread_in(answer.get("unread")),
    )
