"""The identity that a client acts for. Each front end sets it, and authorization will check it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity. It means the same to every protocol."""

    name: str


ANONYMOUS: Final = Principal("anonymous")
"""The identity of every client: front ends check no credentials, and refuse clients that send any."""
