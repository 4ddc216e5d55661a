"""Attack a broker, started as a user starts it, while a well-behaved client holds it to its word.

    .venv/bin/python scripts/attack.py [--minutes 2] [--seed 1] [--only NAME ...] [--list]

Runs each attack of the table (tests/support/attacks) for an equal share of the time, one after another, and prints a
line with a verdict for each; docs/attacks.md says what a verdict is about. Beside each runs a witness
(tests/support/attacks/witness.py). In the end the broker is killed (kill -9), started again, and asked for everything
that it ever promised the witnesses.

The seed decides what is sent, in which order of draws; what meets what is up to the machine. An attack alone, by its
name or its family: `--only wire.storm --only files --seed 7`.

Exits with 0 when every verdict is "ok", else with 1.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support.attacks.table import NAMES, run


def main(arguments: Sequence[str]) -> int:
    """Run it; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description="Attack a broker and hold it to its word.")
    parser.add_argument("--minutes", type=float, default=2, help="for all attacks together (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="NAME", help="an attack or a family, see --list")
    parser.add_argument("--list", action="store_true", help="name the attacks and do nothing")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(NAMES))
        return 0
    names = [name for name in NAMES if not options.only or {name, name.partition(".")[0]} & set(options.only)]
    if not names:
        parser.error("no attack has such a name; --list names them")
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
