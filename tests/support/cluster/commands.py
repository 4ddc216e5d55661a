"""What a story can tell a simulated cluster to do. A command is one line of words.

| command                             | what it does                                                           |
|-------------------------------------|------------------------------------------------------------------------|
| start B.. / close B                 | starts processes; ends one as a broker's stop does                     |
| stop B / continue B                 | SIGSTOP, SIGCONT                                                       |
| kill B                              | SIGKILL                                                                |
| stop B at [OP [NAME]] [N] / kill .. | the same before its Nth such operation on a file with NAME in its name |
| lose-power                          | every process ends, and the disk forgets what was not synced           |
| fill-disk / empty-disk              | no byte fits any more; there is space again                            |
| cut A B                             | connections between A and B break off, and new ones are refused        |
| hold A B                            | what A sends does not reach B                                          |
| half-close A B                      | B sees the end of what A sends                                         |
| heal                                | every line works                                                       |
| put B KEY VALUE [if V] [in SESSION] | writes a record                                                        |
| append B PREFIX VALUE               | writes a sequential record                                             |
| delete B KEY [if V]                 | deletes a record                                                       |
| big B PREFIX N KIB                  | one change set of N records of KIB KiB                                 |
| get B KEY / watch B PREFIX          | reads a record; follows a range                                        |
| session B NAME / end B NAME         | opens a session; ends it                                               |
| snapshot B                          | takes a snapshot                                                       |
| tick SECONDS                        | lets time pass                                                         |
| state                               | what each process is, and holds                                        |
| log                                 | what the disk's log holds, batch by batch                              |

In the place of B, "leader" is the process that leads. A call of a process that is not open is not made.
"""

from collections.abc import Callable
from typing import Final

import trio

from storage.metadata.cluster.roles import Role
from storage.metadata.inspection import COMMITTED, FoundBatch, Inspection
from storage.metadata.store import (
    Change,
    Conflict,
    Delete,
    MetadataError,
    Op,
    Put,
    PutSequential,
    Record,
    StoreUnavailable,
    TakesSnapshots,
    starting_with,
)
from tests.support.cluster.disk_of_process import Moment
from tests.support.cluster.history import Held, Told
from tests.support.cluster.nodes import TIMEOUT, Cluster, Node
from tests.support.metadata_log import DIRECTORY

SETTLE_SECONDS: Final = 0.05
"""How long a command has before the next one. Messages take a millisecond."""

SHOWN_BYTES_MAX: Final = 24
SHOWN_RECORDS_MAX: Final = 8


class Commands:
    """Plays commands on a cluster."""

    def __init__(self, cluster: Cluster, *, settle: float = SETTLE_SECONDS) -> None:
        self._cluster = cluster
        self._settle = settle
        self._large = 0
        """How many large change sets were asked for."""

    async def play(self, line: str) -> list[str]:
        """Do what the line says. Return what the processes said meanwhile."""
        name, *words = [self._cluster.leader() or "b1" if word == "leader" else word for word in line.split()]
        await getattr(self, "_" + name.replace("-", "_"))(*words)
        await trio.sleep(self._settle)
        return self._cluster.heard()

    # -- processes

    async def _start(self, *names: str) -> None:
        for name in names:
            if name not in self._cluster.nodes:
                self._cluster.start(name)
                if len(names) > 1:
                    await trio.sleep(self._settle)

    async def _close(self, name: str) -> None:
        if name in self._cluster.nodes:
            self._cluster.nodes[name].close()

    async def _stop(self, name: str, *moment: str) -> None:
        if name in self._cluster.nodes:
            node = self._cluster.nodes[name]
            self._cluster.epochs_due += 1
            self._act(node, node.stop, moment)

    async def _continue(self, name: str) -> None:
        if name in self._cluster.nodes:
            self._cluster.history.disturbed(name)
            self._cluster.nodes[name].go_on()

    async def _kill(self, name: str, *moment: str) -> None:
        if name in self._cluster.nodes:
            node = self._cluster.nodes[name]
            self._act(node, node.kill, moment)

    def _act(self, node: Node, act: Callable[[], None], words: tuple[str, ...]) -> None:
        if not words:
            act()
            return
        at, *where = words
        assert at == "at", words
        *names, count = where if where[-1].isdecimal() else [*where, "1"]
        operation, name = [*names, "", ""][:2]
        moment = Moment(operation, name, int(count))

        def tell_and_act() -> None:
            node.say(f"{act.__name__} before: {' '.join(where)}")
            act()

        node.files.at(moment, tell_and_act)

    async def _lose_power(self) -> None:
        self._cluster.lose_power()

    async def _fill_disk(self) -> None:
        self._cluster.history.disturbed(*self._cluster.nodes)
        self._cluster.disk.set_capacity(0)

    async def _empty_disk(self) -> None:
        self._cluster.disk.set_capacity(None)

    # -- network

    async def _cut(self, one: str, other: str) -> None:
        self._cluster.network.cut(one, other)
        self._cluster.history.disturbed(one, other)

    async def _hold(self, sender: str, receiver: str) -> None:
        self._cluster.network.hold(sender, receiver)
        self._cluster.history.disturbed(sender, receiver)

    async def _half_close(self, sender: str, receiver: str) -> None:
        self._cluster.network.half_close(sender, receiver)
        self._cluster.history.disturbed(sender, receiver)

    async def _heal(self) -> None:
        self._cluster.network.heal()

    # -- clients

    async def _put(self, name: str, key: str, value: str, *words: str) -> None:
        how = dict(zip(words[::2], words[1::2], strict=True))
        expected = int(how["if"]) if "if" in how else None

        async def put(node: Node) -> None:
            session = node.sessions.get(how.get("in", ""))
            if "in" in how and session is None:
                node.say(f"put {key}: there is no session {how['in']}")
                return
            await self._commit(node, f"put {key}", [Put(key, value.encode(), expected, session=session)])

        self._cluster.ask(name, put)

    async def _append(self, name: str, prefix: str, value: str) -> None:
        ops: list[Op] = [PutSequential(prefix, value.encode(), "p")]
        self._cluster.ask(name, lambda node: self._commit(node, f"append {prefix}", ops))

    async def _delete(self, name: str, key: str, *words: str) -> None:
        ops: list[Op] = [Delete(key, int(words[1]) if words else None)]
        self._cluster.ask(name, lambda node: self._commit(node, f"delete {key}", ops))

    async def _big(self, name: str, prefix: str, count: str, kib: str) -> None:
        # The values tell two such change sets apart.
        self._large += 1
        value = f"{prefix} {self._large} ".encode().ljust(int(kib) * 1024, b".")
        ops: list[Op] = [Put(f"{prefix}/{number:03}", value) for number in range(int(count))]
        self._cluster.ask(name, lambda node: self._commit(node, f"big {prefix}", ops))

    async def _get(self, name: str, key: str) -> None:
        async def get(node: Node) -> None:
            assert node.store is not None, "it is open"
            call = self._cluster.history.begin(node.name)
            try:
                found = await node.store.fresh([key])
            except StoreUnavailable as unavailable:
                node.say(f"get {key}: {unavailable}")
            else:
                call.revision, call.records = found.revision, found.records
                self._cluster.history.end(call, "done")
                record = found.records[key]
                node.say(f"get {key}: {'nothing' if record is None else _record(record)}, at {found.revision}")

        self._cluster.ask(name, get)

    async def _watch(self, name: str, prefix: str) -> None:
        async def watch(node: Node) -> None:
            assert node.store is not None, "it is open"
            told = self._cluster.watched(node, prefix)
            async with node.store.watch_range(*starting_with(prefix)) as watch:
                while True:
                    change = await watch.next()
                    images = int(node.store.statistics().extra["images"])
                    is_taking_over = node.store.role is Role.TAKING_OVER
                    told.steps.append(Told(self._cluster.history.tick(), change, images, is_taking_over))
                    self._judge_sessions(change)
                    node.say(f"watch {prefix}: {_change(change)}")

        self._cluster.ask(name, watch)

    async def _session(self, name: str, session: str) -> None:
        async def open_session(node: Node) -> None:
            assert node.store is not None, "it is open"
            try:
                opened = await node.store.open_session(TIMEOUT)
            except StoreUnavailable as unavailable:
                node.say(f"session {session}: {unavailable}")
                return
            node.sessions[session] = opened
            has_trouble = self._cluster.network.has_trouble(name) or not self._cluster.disk.fitting(1)
            self._cluster.history.sessions.append(Held(node.name, opened, is_disturbed=has_trouble))
            node.say(f"session {session}: {opened.id}")
            await opened.wait_lost()
            node.say(f"session {session} has ended")

        self._cluster.ask(name, open_session)

    async def _end(self, name: str, session: str) -> None:
        async def end(node: Node) -> None:
            opened = node.sessions.get(session)
            if opened is None:
                return
            for held in self._cluster.history.sessions:
                held.is_over |= held.session is opened
            try:
                await opened.close()
            except StoreUnavailable as unavailable:
                node.say(f"end {session}: {unavailable}")

        self._cluster.ask(name, end)

    async def _snapshot(self, name: str) -> None:
        async def snapshot(node: Node) -> None:
            assert isinstance(node.store, TakesSnapshots), "it is open"
            try:
                taken = await node.store.take_snapshot()
            except StoreUnavailable as unavailable:
                node.say(f"snapshot: {unavailable}")
            else:
                node.say(f"snapshot: of batch {taken.sequence}, revision {taken.revision}")

        self._cluster.ask(name, snapshot)

    async def _commit(self, node: Node, what: str, ops: list[Op]) -> None:
        history = self._cluster.history
        assert node.store is not None, "it is open"
        call = history.begin(node.name, tuple(ops))
        try:
            made = await node.store.commit(ops)
        except Conflict as conflict:
            call.conflict = conflict.key, conflict.actual
            history.end(call, "conflict")
            node.say(f"{what}: refused, {conflict}")
        except StoreUnavailable as unavailable:
            history.end(call, "refused" if unavailable.definite else "unknown")
            node.say(f"{what}: {unavailable}")
        except MetadataError as refused:
            history.end(call, "refused")
            node.say(f"{what}: refused, {refused}")
        else:
            call.revision, call.keys = made.revision, made.keys
            history.end(call, "done")
            node.say(f"{what}: made, revision {made.revision}")

    def _judge_sessions(self, change: Change) -> None:
        """C13: whoever holds a session knows of its end before anybody else sees what it deletes."""
        gone = set(change.deleted)
        for held in self._cluster.history.sessions:
            if held.is_over or held.session.has_ended:
                continue
            calls = self._cluster.history.calls
            mine = {op.key for call in calls for op in call.ops if isinstance(op, Put) and op.session is held.session}
            if gone & mine and change.revision:
                self._cluster.history.complaints.append(
                    f"revision {change.revision} deletes {gone & mine}, and {held.broker} believes in its session"
                )

    # -- time

    async def _tick(self, seconds: str) -> None:
        await trio.sleep(float(seconds.removesuffix("s")))

    async def _state(self) -> None:
        for name, node in sorted(self._cluster.nodes.items()):
            store = node.store
            if store is None:
                self._cluster.say(name, "is not open")
                continue
            image = store._image
            shown = _several([_record(record) for record in image.scan("", "\U0010ffff", None)])
            stopped = ", stopped" if node.is_stopped else ""
            links = sorted(live.owner for live in image.sessions.values() if live.owner)
            self._cluster.say(
                name,
                f"{store.role.value}{stopped}, epoch {image.epoch}, revision {image.revision}, "
                f"links of {' '.join(links) or 'nobody'}: {shown}",
            )

    async def _log(self) -> None:
        batches: list[tuple[str, str, list[int]]] = []

        def note(batch: FoundBatch) -> None:
            kinds = dict.fromkeys((type(record).__name__, fate) for record, fate in batch.records)
            told = ", ".join(kind + ("" if fate == COMMITTED else f" ({fate})") for kind, fate in kinds)
            if not batches or batches[-1][:2] != (batch.path.name, told):
                batches.append((batch.path.name, told, []))
            batches[-1][2].append(batch.sequence)

        torn = Inspection(self._cluster.disk.process(), DIRECTORY).follow(note)
        for name, told, numbers in batches:
            self._cluster.say(name, f"{'-'.join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))} {told}")
        if torn is not None:
            self._cluster.say(torn.path.name, f"then {torn.reason}")


def _record(record: Record) -> str:
    value = record.value.decode()
    if len(value) > SHOWN_BYTES_MAX:
        value = f"({len(value)} bytes)"
    session = "" if record.session is None else f" in {record.session}"
    return f"{record.key}={value}@{record.version}{session}"


def _several(texts: list[str]) -> str:
    if len(texts) > SHOWN_RECORDS_MAX:
        texts = [*texts[:2], f"... {len(texts)} in all"]
    return ", ".join(texts) or "nothing"


def _change(change: Change) -> str:
    parts = [_record(record) for record in change.records] + [f"{key} is gone" for key in change.deleted]
    return f"revision {change.revision}: {_several(parts)}"
