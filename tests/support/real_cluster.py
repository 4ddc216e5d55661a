"""Several `tidewire broker` processes on one folder, which can be killed, stopped and continued one by one.

    async with running_cluster(tmp_path, "--metadata", f"etcd://{etcd.endpoint}") as cluster:
        owner = (await cluster.claims())[segment]
        await cluster.kill(owner)                     # kill -9
        await cluster.until(lambda claims: claims.get(segment) not in {None, owner})
        await cluster.start(owner)                    # same id, same addresses
        cluster.freeze(owner)                         # SIGSTOP
        cluster.thaw(owner)

`cluster_loads` has clients for it, which judge what they see. At the end of the block each broker must stop cleanly.
"""

import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson
import trio

from broker.addresses import Address
from broker.cluster.ownership import KEY_PREFIX as CLAIMS
from broker.cluster.ownership import claimed_name
from storage.damages import DAMAGE
from storage.journal_records import RECOVERING
from storage.ledger_record import LedgerInfo, ManagedLedgerRecord
from storage.managed_ledger_record import MANAGED_LEDGERS
from storage.metadata.epochs import FoundEpoch
from tests.support.http import LineReader, request
from tests.support.layout_changes import GONE
from tests.support.outcomes import RETENTION_SECONDS
from tests.support.processes import BROKER_COMMAND, RunningBroker
from txn.ops import KEY_PREFIX as OPERATIONS

BROKERS: Final = ("one", "two", "three")

EMBEDDED: Final = ("--internal", "127.0.0.1:0")
"""The flags of a cluster whose metadata is in its folder."""

RETRY_SECONDS: Final = 0.1
"""After this time a broker that ended a connection is asked again."""

NOTHING: Final[Mapping[str, Sequence[str]]] = {}

Claims = Mapping[str, str]
"""By the name of what is claimed, the broker that has it: a segment, `topic://...` or `coordinator://...`."""

Records = Mapping[str, Any]
"""Values of records, by key."""


class RealCluster:
    """See the module's docstring; made by `running_cluster`."""

    def __init__(self, data_dir: Path, brokers: dict[str, RunningBroker]) -> None:
        """Set up; nothing runs yet. The brokers share `data_dir`."""
        self.data_dir = data_dir
        self.brokers = brokers
        """All of them, by their ids, whether they run or not."""
        self.unsettled: list[str] = []
        """What `settled` waits for."""
        self.unasked: set[str] = set()
        """Brokers that run, and yet cannot say how things are: they are frozen, or cut off."""

    def __getitem__(self, name: str) -> RunningBroker:
        return self.brokers[name]

    @property
    def answering(self) -> list[str]:
        """The brokers that run and can be asked."""
        return [name for name, broker in self.brokers.items() if broker.is_running and name not in self.unasked]

    @property
    def any(self) -> RunningBroker:
        """One of the brokers that run and can be asked."""
        return self.brokers[self.answering[0]]

    def url(self, first: int = 0) -> str:
        """The service URL with all of them. It begins with the broker of this number, which is asked first."""
        addresses = [str(broker.pulsar) for broker in self.brokers.values()]
        return "pulsar://" + ",".join(addresses[first:] + addresses[:first])

    # ------------------------------------------------------------------------------------------------ the processes

    async def start(self, *names: str) -> None:
        """Start brokers side by side, and wait until they are ready."""
        await self._each(names, lambda broker: broker.start())

    async def kill(self, name: str) -> None:
        """Kill a broker (kill -9), and wait for its end."""
        self.unasked.discard(name)
        await trio.to_thread.run_sync(self.brokers[name].kill)

    async def stop(self, *names: str) -> None:
        """Stop brokers side by side (SIGTERM). Each must end cleanly."""
        await self._each(names, lambda broker: broker.stop())

    def freeze(self, name: str) -> None:
        """Stop a broker as a debugger or a frozen virtual machine does (SIGSTOP)."""
        self.unasked.add(name)
        self.brokers[name].process.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a frozen broker continue (SIGCONT)."""
        self.brokers[name].process.send_signal(signal.SIGCONT)
        self.unasked.discard(name)

    async def ended(self, name: str) -> int:
        """Wait until a broker ends by itself, and return its exit status."""
        return await trio.to_thread.run_sync(self.brokers[name].wait_ended)

    async def until_gone(self, name: str) -> None:
        """Wait until a broker has no claims."""
        await self.until(lambda claims: name not in claims.values())

    async def until_back(self, name: str) -> None:
        """Wait until a broker has claims."""
        await self.until(lambda claims: name in claims.values())

    async def _each(self, names: Sequence[str], act: Callable[[RunningBroker], None]) -> None:
        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(trio.to_thread.run_sync, act, self.brokers[name])

    @property
    def stderr(self) -> str:
        """What the brokers wrote to standard error, in all their lives."""
        return next(iter(self.brokers.values())).stderr

    # --------------------------------------------------------------------------------------------------------- roles

    async def claims(self) -> Claims:
        """What is claimed now, as a running broker sees it."""
        return await self.until(lambda _claims: True)

    async def owned(self) -> dict[str, int]:
        """How many segments and regular topics each broker owns, as a running broker sees it."""
        shown = (await request(self.any.http, "GET", "/admin/v2/cluster")).json["brokers"]
        return {one["broker"]: one["claims"]["segments"] + one["claims"]["topics"] for one in shown}

    async def claims_now(self) -> Claims:
        """What is claimed, as new as everything that any broker has answered. `claims` may be some moments old."""
        answer = await request(self.any.http, "GET", f"/admin/v2/metadata/records?prefix={quote(CLAIMS)}")
        assert answer.status == 200, answer
        records = map(orjson.loads, answer.body.splitlines())
        return claims_in({record["key"]: record["value"] for record in records})

    async def until(self, is_reached: Callable[[Claims], bool]) -> Claims:
        """Wait until the claims are as they should be, and return them. A running broker pushes their changes."""
        return claims_in(await self.records(CLAIMS, lambda records: is_reached(claims_in(records))))

    async def records(self, prefix: str, is_reached: Callable[[Records], bool] = lambda _records: True) -> Records:
        """Wait until the records below a prefix are as they should be, and return their values, by key."""
        while True:
            # A broker that loses its session, because this machine is busy for instance, ends all connections.
            with suppress(*GONE):
                return await self._watched(self.any.http, prefix, is_reached)
            await trio.sleep(RETRY_SECONDS)

    async def _watched(self, http: Address, prefix: str, is_reached: Callable[[Records], bool]) -> Records:
        records: dict[str, Any] = {}
        async with await trio.open_tcp_stream(*http) as stream:
            reader = LineReader(stream)
            await reader.ask(http, f"/admin/v2/metadata/watch?prefix={quote(prefix)}")
            while True:
                said = await reader.line()
                assert said is not None, "the watch ended"
                assert "failed" not in said, said
                if "value" in said:
                    records[said["key"]] = said["value"]
                elif said["event"] == "deleted":
                    records.pop(said["key"], None)
                is_whole = said["event"] != "present" and not said.get("more")
                if is_whole and is_reached(records):
                    return records

    async def ended_ledgers(self, writer: str) -> list[Path]:
        """Wait until each ledger of a broker has its end on record, and return their files."""

        def theirs(records: Records) -> Iterator[LedgerInfo]:
            for value in records.values():
                for ledger in ManagedLedgerRecord.decode(orjson.dumps(value)).ledgers:
                    if ledger.writer is not None and ledger.writer.broker == writer:
                        yield ledger

        records = await self.records(MANAGED_LEDGERS, lambda records: all(one.closed for one in theirs(records)))
        return [self.data_dir / "ledgers" / f"{ledger.id:020}.ledger" for ledger in theirs(records)]

    async def settled(self) -> list[str]:
        """Wait until the records say that no work is left, and return what contradicts them on the disk.

        Call it when no client does anything any more.
        """

        def is_settled(records: Records) -> bool:
            self.unsettled = [*unsettled(records)]
            return not self.unsettled

        records = await self.records("/", is_settled)
        return [*unlike_the_disk(records, self.data_dir / "ledgers")]

    def metadata_controller(self) -> FoundEpoch:
        """Who appends to the embedded metadata log."""
        return FoundEpoch.decode(max(self._fences()).read_bytes())

    @property
    def metadata_epoch(self) -> int:
        """The epoch of the embedded metadata log; 0 on etcd."""
        return self.metadata_controller().epoch if self._fences() else 0

    def _fences(self) -> list[Path]:
        return [*(self.data_dir / "metadata").glob("fence-" + 10 * "[0-9]")]


def claims_in(records: Records) -> Claims:
    """Return the claims among these records."""
    return {claimed_name(key): value["broker"] for key, value in records.items() if key.startswith(CLAIMS)}


def unsettled(records: Records) -> Iterator[str]:
    """Yield what a cluster whose clients are gone still has to do: settle, recover, and record ends of ledgers."""
    claims = claims_in(records)
    for key, value in records.items():
        # Ended transactions leave no op records, which would hold back readers. A recovery is announced while it lasts.
        if key.startswith((OPERATIONS, RECOVERING)):
            yield key
        if key.startswith(MANAGED_LEDGERS):
            name = unquote(key.removeprefix(MANAGED_LEDGERS))
            for ledger in ManagedLedgerRecord.decode(orjson.dumps(value)).ledgers:
                if not ledger.closed and (ledger.writer is None or ledger.writer.broker != claims.get(name)):
                    yield f"{name} is at {claims.get(name)}, and {ledger} is open"


def unlike_the_disk(records: Records, folder: Path) -> Iterator[str]:
    """Yield damage on record, and ledgers whose file is missing or too short."""
    for key, value in records.items():
        if key.startswith(DAMAGE):
            yield f"{key}: {value}"
        if key.startswith(MANAGED_LEDGERS):
            for ledger in ManagedLedgerRecord.decode(orjson.dumps(value)).ledgers:
                path = folder / f"{ledger.id:020}.ledger"
                if ledger.closed and not (path.exists() and path.stat().st_size >= ledger.size):
                    yield f"{key}: {path} is missing or short of {ledger}"


@asynccontextmanager
async def running_cluster(
    folder: Path,
    *flags: str,
    brokers: Sequence[str] = BROKERS,
    extra: Mapping[str, Sequence[str]] = NOTHING,
    commands: Mapping[str, Sequence[str]] = NOTHING,
    starting: Sequence[str] | None = None,
    settings: str = "",
) -> AsyncIterator[RealCluster]:
    """Run brokers on `folder`. All are ready. The cluster has the folder's name.

    Args:
        folder: exists, and belongs to this cluster.
        flags: further flags of every broker; they say where the metadata is.
        brokers: their ids.
        extra: further flags of some brokers, which replace `flags`.
        commands: the commands of brokers that have another one than BROKER_COMMAND.
        starting: the brokers that run at first; by default all. The caller starts the others.
        settings: further lines of the brokers' configuration file.

    Raises:
        BrokerFailure: a broker did not start, or did not end cleanly at the end of the block.
    """
    config = folder / "broker.toml"
    config.write_text(
        f'cluster = "{folder.name}"\ntxn_retention_seconds = {RETENTION_SECONDS}\ndeduplication = true\n{settings}'
    )
    flags = (*flags, "--config", str(config), "--verbose")
    data_dir = folder / "data"
    cluster = RealCluster(
        data_dir,
        {
            name: RunningBroker(
                data_dir, (*flags, "--broker-id", name, *extra.get(name, ())), commands.get(name, BROKER_COMMAND)
            )
            for name in brokers
        },
    )
    try:
        await cluster.start(*(brokers if starting is None else starting))
        yield cluster
        await cluster.stop(*cluster.answering)
    except BaseException:
        print(f"records that wait for something: {cluster.unsettled}", file=sys.stderr)
        print(f"standard error of the brokers on {folder}:\n{cluster.stderr}", file=sys.stderr)
        raise
    finally:
        # A frozen one, or after an error all of them.
        for broker in cluster.brokers.values():
            broker.close()
