"""Whom a client acts for. Each front end says it of its clients, and what is to be authorized asks for it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Principal:
    """An identity. It means the same to every protocol."""

    name: str


ANONYMOUS: Final = Principal("anonymous")
"""Every client: front ends check no credentials, and refuse clients that bring some."""
