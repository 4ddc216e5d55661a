"""Fields of a stored record that this release does not know. Whoever changes the record keeps them (C22).

Brokers of two releases share a metadata store during an upgrade. A record of the newer release may have fields that the
older one does not know. The older one must neither fail to read the record nor drop the fields when it changes it.

    _FIELDS = frozenset({"state", "since_ms"})

    fields = orjson.loads(value)                                                    # reading
    made = Group(fields["state"], fields["since_ms"], unknown_in(fields, _FIELDS))

    orjson.dumps({"state": ..., "since_ms": ..., **restored(made.unknown)})         # writing

A later release adds a field by a new name: to the record itself, or to a part that has its own `unknown`. The rows of a
ledger list grow at their end. Other lists have a fixed form.

Pure.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import orjson

Unknown = tuple[tuple[str, bytes], ...]
"""Unknown fields: their names and values, as JSON. A value, like the record that it belongs to."""

NOTHING_UNKNOWN: Final[Unknown] = ()

UnknownColumns = tuple[bytes, ...]
"""The values at the end of a row that a later release has made longer, as JSON."""


def unknown_in(fields: Mapping[str, Any], known: Set[str]) -> Unknown:
    """The fields whose names are not in `known`, for the next writer of the record."""
    if fields.keys() <= known:
        return NOTHING_UNKNOWN
    return tuple((name, orjson.dumps(value)) for name, value in fields.items() if name not in known)


def restored(unknown: Unknown) -> dict[str, orjson.Fragment]:
    """The fields as `orjson.dumps` writes them."""
    return {name: orjson.Fragment(value) for name, value in unknown}


def columns_after(row: Sequence[Any], known: int) -> UnknownColumns:
    """What a row has behind its known columns."""
    return tuple(map(orjson.dumps, row[known:]))


def restored_columns(unknown: UnknownColumns) -> tuple[orjson.Fragment, ...]:
    """The columns as `orjson.dumps` writes them."""
    return tuple(map(orjson.Fragment, unknown))
