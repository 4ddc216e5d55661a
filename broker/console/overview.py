"""The first view: the brokers with their counters, how many topics and open transactions there are, what needs care."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import trio

from broker.cluster.overview import Overview, State
from broker.console.everywhere import Everywhere
from broker.console.feed import Parts, follow
from broker.console.transactions import OpenTransactions
from broker.http.lines import Follower, running
from broker.layouts.store import KEY_PREFIX as LAYOUTS
from broker.layouts.store import UNFINISHED_LAYOUTS
from broker.partitioned_topics import PARTITIONED_TOPICS
from broker.unread import Unread, more_than_named, nobody_reads, unread_in
from storage.metadata.store import Change, MetadataStore
from storage.signal import Signal


class OverviewFeed:
    """See the module's docstring."""

    def __init__(self, store: MetadataStore, everywhere: Callable[[Signal], Everywhere]) -> None:
        """Set up; `everywhere` makes what tells the counters of all brokers, and sets the signal that it gets."""
        self.changed = Signal()
        self._store = store
        self._cluster = Overview(store)
        self._transactions = OpenTransactions(store, with_details=False)
        self._everywhere = everywhere(self.changed)
        self._topics: dict[str, bool] = {}
        """Whether each topic has an unfinished change, by its key."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow all of it until cancelled."""
        async with AsyncExitStack() as stack:
            nursery = await stack.enter_async_context(trio.open_nursery())
            followed: list[tuple[Follower, Signal]] = [
                (self._cluster, self._cluster.changed),
                (self._transactions, self._transactions.changed),
            ]
            for follower, changed in followed:
                await stack.enter_async_context(running(follower))
                nursery.start_soon(self._relay, changed)
            await stack.enter_async_context(running(self._everywhere))
            heard = [(LAYOUTS, self._hear_topics), (PARTITIONED_TOPICS, self._hear_topics)]
            await follow(self._store, heard, self.changed, task_status=task_status)

    async def _relay(self, changed: Signal) -> None:
        while True:
            await changed.wait()
            self.changed.set()

    def parts(self) -> Parts:
        """See `Feed`."""
        view = self._cluster.view()
        told = self._everywhere.by_broker
        silent = self._everywhere.silent
        attention = [{"level": "error", "text": reason, "to": "cluster"} for reason in silent.values()]
        for broker in view.brokers:
            if broker.state is State.GONE:
                attention.append(
                    {
                        "level": "warning",
                        "text": f"Broker {broker.broker} has gone, and its session has not ended yet. When it ends, "
                        "others take over what it owned.",
                        "to": "cluster",
                    }
                )
            problem = told.get(broker.broker, {}).get("problem")
            if problem is not None:
                attention.append({"level": "error", "text": f"Broker {broker.broker}: {problem}.", "to": "cluster"})
            if broker.state is State.DRAINING:
                attention.append(
                    {"level": "note", "text": f"Broker {broker.broker} drains: it takes nothing new.", "to": "cluster"}
                )
        present = [broker.broker for broker in view.brokers if broker.state is not State.GONE]
        attention += _unread([unread_in(told.get(broker, {}).get("unread")) for broker in present])
        unfinished = sum(self._topics.values())
        if unfinished:
            text = (
                f"{unfinished} topics are being split, merged or deleted."
                if unfinished > 1
                else ("One topic is being split, merged or deleted.")
            )
            attention.append({"level": "note", "text": text, "to": "topics"})
        return {
            "brokers": [
                {"broker": each.broker, "state": each.state, "claims": dict(each.claims)} for each in view.brokers
            ],
            "told": {
                broker: {name: said.get(name) for name in ("counters", "stall_ms", "latencies", "bounds_ms")}
                for broker, said in told.items()
            },
            "transactions": self._transactions.summary(),
            "topics": {
                "scalable": sum(key.startswith(LAYOUTS) for key in self._topics),
                "partitioned": sum(key.startswith(PARTITIONED_TOPICS) for key in self._topics),
            },
            "attention": attention,
        }

    def _hear_topics(self, change: Change) -> None:
        for key in change.deleted:
            self._topics.pop(key, None)
        for record in change.records:
            self._topics[record.key] = any(entry.name == UNFINISHED_LAYOUTS for entry in record.indexes)


def _unread(told: Sequence[Unread]) -> list[dict[str, str]]:
    """Say for which subscriptions messages wait to which no consumer is connected, as far as that is known."""
    found = nobody_reads(told)
    if not found:
        return []
    topic, name = next(iter(found))
    more = more_than_named(told)
    others = len(found) - 1 + more
    rest = f" and {others} other subscription{'s' if others > 1 else ''}" if others else ""
    if more:
        rest = f" and up to {others} other subscriptions"
    text = f"Messages wait for {name} of {topic}{rest}, and nobody is connected to read them."
    return [{"level": "warning", "text": text, "to": "subscriptions", "only": "stuck"}]
