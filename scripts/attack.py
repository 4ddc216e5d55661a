"""Attack a broker that runs as users start it, while a well-behaved client checks its promises.

    .venv/bin/python scripts/attack.py [--minutes 2] [--seed 1] [--only NAME ...] [--list]

The attacks in the table (tests/support/attacks) run one after another, each for an equal share of the time. The script
prints a line with a verdict for each; docs/attacks.md explains the verdicts. A witness runs beside each attack
(tests/support/attacks/witness.py). At the end the broker is killed (kill -9) and started again, and must still have
everything that it promised the witnesses.

The seed decides what is sent. The timing depends on the machine. To run single attacks or families, name them:
`--only wire.storm --only files --seed 7`.

The exit status is 0 if every verdict is "ok", else 1.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.attacks.table import NAMES, run


def main(arguments: Sequence[str]) -> int:
    """Run the attacks. Return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Attack a broker and check its promises.")
    parser.add_argument("--minutes", type=float, default=2, help="time for all attacks together (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="NAME", help="run this attack or family; see --list")
    parser.add_argument("--list", action="store_true", help="list the attacks and exit")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(NAMES))
        return 0
    names = [name for name in NAMES if not options.only or {name, name.partition(".")[0]} & set(options.only)]
    if not names:
        parser.error("there is no attack of that name; --list shows the names")
    print(f"attack: seed {options.seed}, {len(names)} attacks in {options.minutes:g} minutes", flush=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="tidewire-attack-") as folder:
        for verdict in run(Path(folder), names, options.seed, options.minutes * 60):
            print(verdict.line(), flush=True)
            if verdict.complaints:
                failed.append(verdict.name)
    for name in failed:
        print(f"attack: repeat with scripts/attack.py --only {name} --seed {options.seed} --minutes {options.minutes}")
    print(f"attack: {'FAILED: ' + ', '.join(failed) if failed else 'every promise was kept'}, seed {options.seed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
