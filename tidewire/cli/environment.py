"""Refuses `TIDEWIRE_*` variables that no command knows, as a broker does: a typo would otherwise have no effect."""

import os
from typing import Final

from tidewire.cli.daemon import make_importable
from tidewire.cli.endings import UsageError, one_sentence

_PREFIX: Final = "TIDEWIRE_"

_USUAL: Final = frozenset({"TIDEWIRE_DATA_DIR", "TIDEWIRE_HTTP_URL", "TIDEWIRE_SERVICE_URL"})
"""Known variables, for which the broker's list need not be imported."""


def require_known_variables() -> None:
    """End the process with a message that names the nearest known variable, if one is unknown."""
    if all(name in _USUAL or not name.upper().startswith(_PREFIX) for name in os.environ):
        return
    make_importable()
    from broker.config import unknown_variables

    unknown = unknown_variables(os.environ)
    if unknown:
        with one_sentence("tidewire"):
            raise UsageError(" ".join(unknown))
