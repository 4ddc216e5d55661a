"""Computes what a hundred brokers would need, from costs that were measured on one machine. Writes docs/scale.md.

    .venv/bin/python scripts/scale.py            # writes the page
    .venv/bin/python scripts/scale.py --check    # exits with 1 if the page says anything else

The model is linear: what one transaction, one change set or one segment costs, times their number. Each cost names the
place of its measurement. Nothing here was run at that size.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parents[1] / "docs" / "scale.md"
CORE: Final = 1e6
"""The microseconds of CPU that one core has in a second."""
GIB: Final = 2**30
MIB: Final = 2**20


class Input(NamedTuple):
    """A measured cost."""

    value: float
    unit: str
    what: str
    source: str
    """Where it was measured."""


class Inputs(NamedTuple):
    """All costs that the model uses."""

    transaction: Input
    change_sets: Input
    put: Input
    serve: Input
    serve_each: Input
    follow: Input
    etcd_puts: Input
    etcd_transaction: Input
    log: Input
    message: Input
    header: Input
    retention: Input
    idle: Input
    loaded: Input
    load: Input
    fail_over: Input


_CLUSTER: Final = "`scripts/bench_cluster.py`, part `{}`; [Performance](performance.md#a-cluster)"
_METADATA: Final = "`scripts/bench_metadata.py`; [Performance](performance.md#the-metadata-store)"

MEASURED: Final = Inputs(
    transaction=Input(
        424,
        "µs",
        "CPU of a broker for a transaction of one message, 64 in flight",
        "[Performance](performance.md#what-a-cluster-costs-one-broker)",
    ),
    change_sets=Input(3.1, "", "change sets of such a transaction", _CLUSTER.format("follow")),
    put=Input(15, "µs", "CPU of the embedded store for a put, 64 writers", _METADATA),
    serve=Input(
        32, "µs", "CPU that numbering adds to a change set at a controller with followers", _CLUSTER.format("follow")
    ),
    serve_each=Input(9, "µs", "CPU that each follower adds to it, at most", _CLUSTER.format("follow")),
    follow=Input(48, "µs", "CPU of each other broker for a change set", _CLUSTER.format("follow")),
    etcd_puts=Input(12_400, "/s", "puts that one etcd of one member takes", _METADATA),
    etcd_transaction=Input(340, "µs", "CPU of etcd for a transaction", _CLUSTER.format("follow")),
    log=Input(290, "B", "metadata log for a change set", _CLUSTER.format("follow")),
    message=Input(
        4,
        "µs",
        "CPU of a broker for a message of 1 KiB in batches",
        "`scripts/bench_process.py`; [Performance](performance.md#one-process-beside-kafka-430-and-pulsar-500-m1)",
    ),
    header=Input(
        1_461,
        "B",
        "memory of a committed transaction whose header is kept",
        "`scripts/bench_memory.py`, without its message; "
        "[Performance](performance.md#memory-scriptssoakpy-scriptsbench_memorypy)",
    ),
    retention=Input(60, "s", "time for which headers are kept", "the default of `--txn-retention-seconds`"),
    idle=Input(1.53, "KiB", "memory of an idle segment, at every broker", _CLUSTER.format("idle")),
    loaded=Input(37.2, "KiB", "memory of a loaded segment without clients, at its owner", _CLUSTER.format("idle")),
    load=Input(2.0, "ms", "time to load a segment", _CLUSTER.format("idle")),
    fail_over=Input(0.5, "s", "from a kill to the first publish on the new owner", _CLUSTER.format("fail-over")),
)


class Size(NamedTuple):
    """How large the cluster is."""

    brokers: int
    segments: int
    transactions: int
    """Per second, each with one message."""


_OWN: Final = "a broker's own transactions"

TARGET: Final = Size(100, 100_000, 1_000_000)


class Need(NamedTuple):
    """What one kind of resource has to carry."""

    what: str
    shown: str
    """The demand, with its unit."""
    times: float
    """How many of what there is would be needed: cores for one process, or etcds."""
    unit: str


def needs(inputs: Inputs, size: Size) -> list[Need]:
    """The demands, the largest excess first."""
    change_sets = size.transactions * inputs.change_sets.value
    own = size.transactions / size.brokers * inputs.transaction.value / CORE
    follow = change_sets * inputs.follow.value / CORE
    decide = change_sets * _decide(inputs, size) / CORE
    found = [
        Need(_OWN, f"{own:,.1f} cores of each broker", own, "processes"),
        Need("following all metadata", f"{follow:,.0f} cores of each broker", follow, "processes"),
        Need("the controller of the embedded metadata", f"{decide:,.0f} cores of one broker", decide, "processes"),
        Need("etcd", f"{change_sets:,.0f} puts a second", change_sets / inputs.etcd_puts.value, "etcds"),
    ]
    return sorted(found, key=lambda need: need.times, reverse=True)


def limits(inputs: Inputs, size: Size) -> dict[str, float]:
    """Transactions a second of the whole cluster at which each resource is used up, if nothing else were."""
    change_set = inputs.change_sets.value
    follow = change_set * inputs.follow.value
    return {
        "the controller of the embedded metadata": CORE / (change_set * _decide(inputs, size)),
        "one etcd": inputs.etcd_puts.value / change_set,
        "one process of each broker": CORE / (inputs.transaction.value / size.brokers + follow),
        "one process of each broker that followed nothing": CORE / inputs.transaction.value * size.brokers,
    }


def _decide(inputs: Inputs, size: Size) -> float:
    """The CPU of a change set at the controller of the embedded metadata, in microseconds."""
    return inputs.put.value + inputs.serve.value + (size.brokers - 1) * inputs.serve_each.value


def memory_gib(inputs: Inputs, size: Size) -> dict[str, float]:
    """The memory of each broker, by what it is for."""
    return {
        "records of all segments": size.segments * inputs.idle.value * 1024 / GIB,
        "its own loaded segments": size.segments / size.brokers * inputs.loaded.value * 1024 / GIB,
        "headers of all ended transactions": (size.transactions * inputs.retention.value * inputs.header.value / GIB),
    }


def page(inputs: Inputs = MEASURED, size: Size = TARGET) -> str:
    """The whole page."""
    change_sets = size.transactions * inputs.change_sets.value
    demands = needs(inputs, size)
    at_most = sorted(limits(inputs, size).items(), key=lambda limit: limit[1])
    first, first_rate = at_most[0]
    ten_rate = _round(limits(inputs, size._replace(brokers=10))[first])
    memory = memory_gib(inputs, size)
    dead = size.segments / size.brokers
    each = dead / (size.brokers - 1) * inputs.load.value
    log = change_sets * inputs.log.value / MIB
    plain = size.transactions * inputs.message.value / CORE
    etcd_cores = size.transactions * inputs.etcd_transaction.value / CORE
    etcds = change_sets / inputs.etcd_puts.value
    etcd_rate = _round(dict(at_most)["one etcd"])
    times = {need.what: need.times for need in demands}
    changes = [
        (
            "A broker follows only the transactions of its own segments and shards",
            f"following costs each broker {times['following all metadata']:,.0f} cores",
        ),
        ("Headers and op records in shards with a log each", "one log is one core, or one etcd"),
        (
            "Reads by `fresh` instead of an image of everything",
            f"{memory['headers of all ended transactions']:,.0f} GiB of headers at each broker",
        ),
        (
            "Several processes for each broker (`--processes`)",
            f"{times[_OWN]:,.1f} cores of its own work at each",
        ),
    ]
    return f"""# Scale

This page is written by `scripts/scale.py`, and a test compares the two. It asks what {size.brokers} brokers with
{size.segments:,} segments need for {size.transactions:,} transactions a second of one message each. The
model is linear: each cost was measured on one machine with two cores, and is multiplied. Nothing was
run at this size.

**The metadata saturates first.** All change sets go through one log, and every broker follows all of
them. {first[0].upper() + first[1:]} is used up at {_round(first_rate)} transactions a second
of the whole cluster. With ten brokers it would last to {ten_rate}. More brokers raise the rate of
messages and of segments, not that of transactions.

## Measured costs

| cost | | measured by |
|---|---|---|
{_rows((cost.what, f"{cost.value:,g} {cost.unit}".strip(), cost.source) for cost in inputs)}

## What saturates, and when

The rate of transactions of the whole cluster at which each resource is used up, if it were the only
limit:

| resource | transactions a second |
|---|---|
{_rows((what, _round(rate)) for what, rate in at_most)}

What {size.transactions:,} transactions a second need. They are {change_sets:,.0f} change sets:

| resource | needs | of what one has |
|---|---|---|
{_rows((need.what, need.shown, f"{need.times:,.1f} {need.unit}") for need in demands)}

The metadata log grows by {log:,.0f} MiB a second. Plain messages need no metadata: as many of them in
batches take {plain:,.0f} cores of all brokers together.

Memory of each broker:

| for | GiB |
|---|---|
{_rows((what, f"{gib:,.2f}") for what, gib in memory.items())}

**Segments are no limit.** {size.segments:,} of them take {memory["records of all segments"] * 1024:,.0f} MiB of
each broker. When a broker dies, {dead:,.0f} segments need new owners, {dead / (size.brokers - 1):,.0f} at each
survivor. To load these takes {each:,.0f} ms, after the {inputs.fail_over.value:g} s of the fail-over itself.

## What etcd or Oxia must carry

- **etcd** has one log for all keys. It takes {inputs.etcd_puts.value:,.0f} puts a second here, and would need
  {etcds:,.0f} times that. Its own CPU would be {etcd_cores:,.0f} cores. A larger machine raises that by a
  factor, not by hundreds. So etcd serves a cluster of this kind up to about {etcd_rate} transactions
  a second.
- **Oxia** divides keys among shards, each with its own log. All records of a transaction share a
  partition key. So {size.brokers} shards would each carry {change_sets / size.brokers:,.0f} puts a second.
  But an op record is conditioned on the claim of its segment, which lies in another shard, and Oxia
  judges conditions within one. A store on Oxia does not exist here yet.

## What would have to change

| what | why |
|---|---|
{_rows(changes)}

The contract of the store is ready for this: `fresh(keys)` asks for the records that a decision needs,
and partition keys say which records belong together. The embedded store and etcd keep an image of
everything instead, because a cluster of a few brokers is faster with it.

## What the model leaves out

- Two cores served all processes during the measurements. Caches that were cold there make each cost
  higher than on a machine of its own.
- Change sets come in larger groups at higher rates, which makes each of them cheaper.
- The network between brokers, and the controller's network: it sends the whole log to each follower.
- Transactions of many messages. They need an op record for each segment that they write to, and no
  further change set for each message.
"""


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _round(rate: float) -> str:
    """Two digits: the model knows no more."""
    digits = max(0, len(str(int(rate))) - 2)
    return f"{round(rate, -digits):,.0f}"


def main(arguments: Sequence[str]) -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description="Write docs/scale.md from measured costs.")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args(arguments)
    if options.check:
        return 0 if PAGE.read_text("utf-8") == page() else 1
    PAGE.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
