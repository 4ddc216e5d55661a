"""Where the daemon's packages are: beside this package in a checkout, in `tidewire/_daemon` in an installed wheel.

A wheel adds only the name `tidewire`. Only a process that runs the daemon's code has `broker`, `storage` and the other
rooms on its import path.
"""

import sys
from pathlib import Path


def make_importable() -> None:
    """Put the daemon's folder on this process's import path. In a checkout it is there already."""
    folder = Path(__file__).parent.with_name("_daemon")
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
