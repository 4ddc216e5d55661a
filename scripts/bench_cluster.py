"""Measures a cluster: fail-over, hand-over, commits over brokers, and what a broker pays for the others.

    .venv/bin/python scripts/bench_cluster.py [--metadata etcd,embedded] [--repeats 5] [--only fail-over,hand-over]

It starts brokers as a user would, on one machine, one data folder and one metadata store. Each part has a new cluster.

| part      | what                                                                                            |
|-----------|-------------------------------------------------------------------------------------------------|
| fail-over | from the kill of a segment's owner to the first publish and delivery, with the shortest session |
| many      | the same for the producers of a third of 300 topics at once                                     |
| hand-over | how long a send takes during a move, an unload and a drain                                      |
| commit    | commits with 64 segments, which one, two and three brokers own                                  |
| follow    | the CPU of brokers that only follow the metadata, with 1 to 8 brokers                           |
| idle      | memory and CPU of 10,000 idle segments on one broker                                            |
| processes | one process beside two on the cores of this machine; the clients have the lowest priority       |

Each line has the median, the spread and the target. Two cores serve all brokers, clients and etcd, so times are those
of a busy machine. The exit status is 0, whatever was missed.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

import orjson
import trio

from scripts.cluster_costs import commit, follow
from scripts.cluster_figures import Figures
from scripts.cluster_handovers import fail_over, fail_over_of_many, hand_over
from scripts.cluster_processes import idle, processes
from scripts.cluster_stage import STORES

Part = Callable[[str, int, Figures], Awaitable[None]]
"""Measures on this metadata store, so many times."""

PARTS: Final[Mapping[str, Part]] = {
    "fail-over": fail_over,
    "many": fail_over_of_many,
    "hand-over": hand_over,
    "commit": commit,
    "follow": follow,
    "idle": idle,
    "processes": processes,
}


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Measure a cluster of brokers on this machine.")
    parser.add_argument("--metadata", default=",".join(STORES), help="metadata stores, separated by commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help="parts to measure, separated by commas")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(arguments)
    figures = Figures()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.repeats} repeats", flush=True)
    for part in options.only.split(","):
        for store in options.metadata.split(","):
            trio.run(PARTS[part], store, options.repeats, figures)
    print("\n".join(figures.lines()))
    print(f"load at the end {os.getloadavg()[0]:.1f}; missed: {', '.join(figures.missed()) or 'nothing'}")
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(figures.plain(), option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main(sys.argv[1:])
