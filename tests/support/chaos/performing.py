"""Does to a cluster what a schedule says, at the moments that it says.

An act whose victim is gone already, or is the victim of another act, is left out. A line in the logbook says so.
"""

import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from os import kill
from random import Random
from typing import Final

import orjson
import trio

from tests.support.chaos.acts import BROKERS, FAULTS, PLACES, Act, Store
from tests.support.chaos.cluster import LOG_LINES, Cluster
from tests.support.happenings import Happenings
from tests.support.layout_changes import LayoutChanges
from tests.support.processes import BrokerFailure

PASSING: Final = frozenset({404, 409, 412, 503, 504})
"""Answers to a request that cannot be carried out at the moment, because of other acts."""
DONE: Final = 204

STARTS_MAX: Final = 3
"""How often a broker that does not become ready is started."""
CHANGE_SECONDS_MAX: Final = 90.0
"""How long a split or merge may take. The broker's own limits are shorter."""

Performance = Callable[[Act, Random], Awaitable[None]]


class Performing:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, scalable: Sequence[str], regular: Sequence[str]) -> None:
        """`scalable` and `regular` are the topics whose segments are split, and which are moved."""
        self.happenings = Happenings()
        self._cluster = cluster
        self._logbook = cluster.logbook
        self._scalable = scalable
        self._regular = regular
        self._victims: set[str] = set()
        self._acts: dict[str, Performance] = {
            "kill.broker": self._kill_broker,
            "kill.leader": self._kill_broker,
            "kill.etcd": self._kill_etcd,
            "stop.broker": self._stop_broker,
            "stop.leader": self._stop_broker,
            "stop.etcd": self._stop_etcd,
            "restart.broker": self._restart_broker,
            "restart.rolling": self._restart_all,
            "hand.drain": self._drain,
            "hand.move": self._move,
            "hand.unload": self._unload,
            "layout.split": partial(self._change_layout, splits=True),
            "layout.merge": partial(self._change_layout, splits=False),
            **{f"{fault}.{place}": self._fault for fault in FAULTS for place in PLACES},
        }

    async def perform(self, acts: Sequence[Act]) -> None:
        """Perform all acts. When this returns, everything runs again and nothing is cut."""
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for act in acts:
                await trio.sleep_until(begun + act.at)
                nursery.start_soon(self._perform, act)
        for name, broker in self._cluster.brokers.items():
            if not broker.is_running:
                await self._cluster.start(name)

    async def _perform(self, act: Act) -> None:
        self.happenings.note(act.kind)
        await self._acts[act.kind](act, Random(act.seed))

    def _say(self, act: Act, what: str) -> None:
        self._logbook.say(f"{act}: {what}")

    async def _taken(self, act: Act, random: Random) -> str | None:
        """Take the act's victim, so that no other act does; None if it is not there."""
        name = await self._cluster.resolve(act.victim, random)
        if name is None:
            self._say(act, "left out, because nobody says who that is")
        elif name in self._victims or (name in BROKERS and not self._cluster.is_running(name)):
            self._say(act, f"left out, because {name} is the victim of another act")
        else:
            self._victims.add(name)
            return name
        return None

    # ------------------------------------------------------------------------------------------------------- processes

    async def _kill_broker(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        self._say(act, name)
        await self._cluster.kill(name)
        for tell in self._cluster.on_death:
            tell(random)
        await trio.sleep(act.seconds)
        await self._start(name)

    async def _stop_broker(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        self._say(act, name)
        self._cluster.freeze(name)
        try:
            await trio.sleep(act.seconds)
        finally:
            if self._cluster.is_running(name):
                self._cluster.thaw(name)
        self._logbook.say(f"{name} continues")
        self._victims.discard(name)

    async def _restart_broker(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        self._say(act, name)
        await self._stop(name)
        await trio.sleep(act.seconds)
        await self._start(name)

    async def _restart_all(self, act: Act, random: Random) -> None:
        self._say(act, "")
        for name in BROKERS:
            if await self._taken(act._replace(victim=name), random) is None:
                continue
            await self._ask(act, "POST", f"/brokers/{name}/drain")
            await self._stop(name)
            await self._start(name)

    async def _stop(self, name: str) -> None:
        begun = trio.current_time()
        try:
            await self._cluster.stop(name)
        except* BrokerFailure as failed:
            self._logbook.complain(f"{name} did not stop as it should: {shortened(failed)}")
        else:
            self._logbook.say(f"{name} has stopped, after {trio.current_time() - begun:.1f} s")

    async def _start(self, name: str) -> None:
        """Start a broker, and start it again if it ends, as a service manager does. The end of the acts tries again."""
        begun = trio.current_time()
        for _ in range(STARTS_MAX):
            try:
                await self._cluster.start(name)
            except* BrokerFailure as failed:
                self._logbook.complain(f"{name} did not start: {shortened(failed)}")
            else:
                self._logbook.say(f"{name} runs again, after {trio.current_time() - begun:.1f} s")
                break
        self._victims.discard(name)

    async def _kill_etcd(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        assert self._cluster.etcd is not None, "it has just told its leader"
        self._say(act, name)
        node = self._cluster.etcd.nodes[name]
        await trio.to_thread.run_sync(node.kill)
        await trio.sleep(act.seconds)
        await trio.to_thread.run_sync(node.start)
        self._victims.discard(name)

    async def _stop_etcd(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        assert self._cluster.etcd is not None, "it has just told its leader"
        self._say(act, name)
        pid = self._cluster.etcd.nodes[name].pid
        kill(pid, signal.SIGSTOP)
        try:
            await trio.sleep(act.seconds)
        finally:
            kill(pid, signal.SIGCONT)
            self._victims.discard(name)

    # ---------------------------------------------------------------------------------------- networks, topics, layouts

    async def _fault(self, act: Act, random: Random) -> None:
        fault, _, place = act.kind.partition(".")
        with self._cluster.network.faulty(fault, place, act.victim, random) as ways:
            what = "etcd" if place == "store" and self._cluster.store is Store.ETCD else place
            self._say(act, f"{ways} ways to {what}" if ways else "left out, because that is faulty already")
            await trio.sleep(act.seconds)

    async def _drain(self, act: Act, random: Random) -> None:
        name = await self._taken(act, random)
        if name is None:
            return
        await self._ask(act, "POST", f"/brokers/{name}/drain")
        await trio.sleep(act.seconds)
        await self._ask(act, "DELETE", f"/brokers/{name}/drain")
        self._victims.discard(name)

    async def _move(self, act: Act, random: Random) -> None:
        content = {"topic": random.choice((*self._scalable, *self._regular)), "to": random.choice(BROKERS)}
        await self._ask(act, "POST", "/move", content)

    async def _unload(self, act: Act, random: Random) -> None:
        await self._ask(act, "POST", "/unload", {"topic": random.choice((*self._scalable, *self._regular))})

    async def _ask(self, act: Act, method: str, path: str, content: dict[str, str] | None = None) -> None:
        """Ask for something, from any broker. Anything but success and a passing obstacle is a complaint."""
        begun = trio.current_time()
        body = b"" if content is None else orjson.dumps(content)
        answer = await self._cluster.ask(method, "/admin/v2/cluster" + path, body)
        what = f"{method} {path} {' to '.join((content or {}).values())}"
        if answer is None:
            self._say(act, f"{what}: the broker that was asked has gone")
            return
        reason = f", {answer.body.decode(errors='replace'):.200}" if answer.status != DONE else ""
        self._say(act, f"{what}: {answer.status} after {trio.current_time() - begun:.1f} s{reason}")
        if answer.status != DONE and answer.status not in PASSING:
            self._logbook.complain(f"{what} was answered {answer.status}{reason}")

    async def _change_layout(self, act: Act, random: Random, *, splits: bool) -> None:
        asked = next(filter(self._cluster.is_running, self._cluster.answering), None)
        if asked is None:
            self._say(act, "left out, because no broker runs")
            return
        changes = LayoutChanges(self._cluster[asked].http, Happenings())
        topic = random.choice(self._scalable)
        self._say(act, topic)
        with trio.move_on_after(CHANGE_SECONDS_MAX) as waiting:
            await changes.change((topic,), random, splits=splits)
        if waiting.cancelled_caught and asked in self._cluster.answering:
            self._logbook.complain(f"{act} of {topic} was not answered within {CHANGE_SECONDS_MAX:.0f} s")
        for complaint in changes.complaints:
            self._logbook.complain(complaint)


def shortened(failed: BaseExceptionGroup) -> str:
    """Return what a broker's failure says, and the end of its log."""
    first, *log = str(failed.exceptions[0]).splitlines()
    return "\n".join((first, *log[-LOG_LINES:]))
