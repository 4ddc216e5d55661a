"""What the doctor finds at the brokers themselves: those that do not answer, lag, or differ from each other. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from broker.doctor.facts import Facts
from broker.doctor.finding import Finding, counted, records_of
from storage.ages import SKEW_MAX_MS
from txn.duty import SHARDS, shard_name

CLOCK_MS_MAX: Final = 60_000
"""A larger difference between two clocks is found."""
JOINS_MAX: Final = 12
"""A broker that found its metadata controller more often within an hour is found. A restart of all costs a few."""
WRITE_SECONDS_MAX: Final = 5.0
"""A write that waits longer for the metadata controller is found."""
REVISIONS_MAX: Final = 1_000
"""A broker whose metadata is further behind is found."""


def silent(facts: Facts) -> Iterator[Finding]:
    """A registered broker does not answer, or says that it cannot serve."""
    ended = frozenset() if facts.folder is None else facts.folder.ended
    for broker, told in sorted(facts.told.items()):
        if told is None and broker in ended:
            yield Finding(
                "broker-ended",
                broker,
                f"The process of {broker} has ended, and its session has not. Its topics wait for that.",
                "The others take over when the session ends. Start the broker again.",
            )
        elif told is None:
            yield Finding(
                "broker-silent",
                broker,
                f"{broker} is registered and does not answer over HTTP. It may be stopped, stuck or cut off.",
                f"See its log. If it does not go on, end its process: `tidewire cluster kill {broker}`.",
            )
        elif told.problem is not None:
            yield Finding(
                "broker-cannot-serve", broker, f"{told.problem[:1].upper()}{told.problem[1:]}.", "Do what it says."
            )


def unregistered(facts: Facts) -> Iterator[Finding]:
    """A broker's process runs without a registration."""
    if facts.records is None or facts.folder is None or not facts.is_running:
        return
    for broker in sorted(facts.folder.running - facts.records.registered.keys()):
        yield Finding(
            "broker-without-session",
            broker,
            f"The process of {broker} runs, and it is not registered. It starts, or it has lost its session.",
            "See its log. It serves nobody until it reaches the metadata store.",
        )


def uncontrolled(facts: Facts) -> Iterator[Finding]:
    """Nobody leads the embedded metadata, or two brokers say that they do (C3)."""
    fence = None if facts.folder is None else facts.folder.fence
    leading = [broker for broker, told in sorted(facts.told.items()) if told is not None and told.store.get("leads")]
    is_shared = any(told is not None and "leads" in told.store for told in facts.told.values())
    if fence is None or not is_shared:
        return
    if not leading:
        how = "has ended" if fence.has_ended else "has not ended, so it may be stopped or stuck"
        yield Finding(
            "metadata-without-controller",
            fence.broker,
            f"No broker that answers leads the metadata. Epoch {fence.epoch} is that of {fence.broker}, whose process "
            f"{how}.",
            "Another broker takes over within a session timeout. If none does, see the logs for `metadata`: often the "
            "disk is full or fails.",
        )
    elif len(leading) > 1:
        yield Finding(
            "metadata-with-two-controllers",
            ", ".join(leading),
            f"{' and '.join(leading)} say that they lead the metadata. Only the one of epoch {fence.epoch} can write.",
            "The other one notices at its next beat. If it does not, end its process.",
        )


def unsteady(facts: Facts) -> Iterator[Finding]:
    """A broker's part in the embedded metadata changes often, or its writes wait (C24)."""
    for broker, told in sorted(facts.told.items()):
        store: Mapping[str, float] = {} if told is None else told.store
        joined, waited = store.get("joined_in_last_hour", 0), store.get("oldest_write_seconds", 0)
        if joined > JOINS_MAX:
            yield Finding(
                "metadata-unsteady",
                broker,
                f"{broker} found its metadata controller {joined:.0f} times within an hour; the epoch is "
                f"{store.get('epoch', 0):.0f}.",
                "Look for processes that end, stand still or have too little CPU. Give more with "
                "--session-timeout-seconds.",
            )
        if waited > WRITE_SECONDS_MAX:
            yield Finding(
                "metadata-writes-wait",
                broker,
                f"A write of {broker} has waited {waited:.0f} s for the metadata controller.",
                "See the log of the metadata controller: often its disk is slow or full.",
            )


def behind(facts: Facts) -> Iterator[Finding]:
    """A broker holds older metadata than another one."""
    known = {broker: told.revision for broker, told in facts.told.items() if told is not None}
    newest = max(known.values(), default=0)
    for broker, revision in sorted(known.items()):
        if newest - revision > REVISIONS_MAX:
            yield Finding(
                "metadata-behind",
                broker,
                f"The metadata of {broker} is at revision {revision}, {newest - revision} behind the newest.",
                "If it stays behind, its link to the metadata is slow or its process is overloaded. See its log.",
            )


def clocks(facts: Facts) -> Iterator[Finding]:
    """The clocks of two brokers differ (C17)."""
    for broker, told in sorted(facts.told.items()):
        if told is not None and abs(told.ahead_ms) > CLOCK_MS_MAX:
            where = "ahead of" if told.ahead_ms > 0 else "behind"
            is_beyond = abs(told.ahead_ms) > SKEW_MAX_MS
            yield Finding(
                "clocks-differ",
                broker,
                f"The clock of {broker} is {abs(told.ahead_ms) // 1000} s {where} that of the broker that was asked. "
                + ("Deadlines and retentions may be cut short." if is_beyond else "Up to two hours do no harm."),
                "Set the machine's clock. The broker follows it slowly; a restart takes the new time at once.",
            )


def releases(facts: Facts) -> Iterator[Finding]:
    """The brokers run different releases."""
    releases = Counter(registered.release for registered in records_of(facts).registered.values())
    if len(releases) > 1:
        told = ", ".join(f"{release} on {count}" for release, count in sorted(releases.items()))
        yield Finding(
            "mixed-releases", "releases", f"The brokers run different releases: {told}.", "Finish the upgrade."
        )


def coordinators(facts: Facts) -> Iterator[Finding]:
    """A coordinator has no owner, or the brokers disagree on how many there are."""
    counts = {told.coordinators for told in facts.told.values() if told is not None}
    missing = [
        shard_name(number)
        for number in range(max(counts, default=0))
        if shard_name(number) not in records_of(facts).claims
    ]
    if missing and facts.records is not None:
        yield Finding(
            "coordinators-unowned",
            SHARDS,
            f"Nobody owns {counted(missing, 'coordinator')}. Their transactions do not end on time.",
            "See the logs for `shards of coordinators`. Clients go on meanwhile.",
        )
    if len(counts) > 1:
        yield Finding(
            "settings-differ",
            "transaction_coordinators",
            f"The brokers disagree on the number of coordinators: {', '.join(map(str, sorted(counts)))}.",
            "Give all brokers the same setting, and restart them one by one.",
        )
