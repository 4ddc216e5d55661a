"""Which tests of the client's suite Apache Pulsar 5.0.0-M1 does not pass, and why. docs/python-against-pulsar.md tells.

The table is held strictly: a test that is listed as always failing and passes is a failure of the run.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Difference:
    """Why a test fails there."""

    cause: str
    always: bool = True
    """False: in some runs only."""


DIFFERENCES: Final[Mapping[str, Difference]] = {}
"""By the test's name."""
