"""How a message declares its fields: each has a type, and the versions that have it.

    @dataclass(frozen=True, slots=True)
    class ListOffsetsPartition:
        partition: int = int32()
        current_leader_epoch: int = int32(since=4, default=-1)
        timestamp: int = int64()

One class stands for all versions of a structure. A version lacks the fields outside of their range; they then have
their default. `codec.py` reads these declarations. A field with a `tag` is optional on the wire: it is written only if
it differs from its default, and only flexible versions can have it.

The names and numbers are those of Kafka's protocol guide.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

METADATA_KEY: Final = "kafka"
"""Under this key, a dataclass field has its `FieldSpec`."""

VERSION_MAX: Final = 0x7FFF


class Kind(Enum):
    """The type of a field on the wire."""

    BOOL = auto()
    INT8 = auto()
    INT16 = auto()
    INT32 = auto()
    INT64 = auto()
    UUID = auto()
    """16 bytes."""
    STRING = auto()
    BYTES = auto()
    RECORDS = auto()
    """Record batches. Read as bytes; may be written as pieces, so that stored batches are not copied."""
    STRUCT = auto()
    ARRAY = auto()


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """The declaration of one field."""

    kind: Kind
    since: int = 0
    until: int = VERSION_MAX
    """The last version that has it."""
    nullable_since: int | None = None
    """The first version in which it may be null; None if it may never be."""
    tag: int | None = None
    element: "type[Any] | FieldSpec | None" = None
    """The class of a structure, or what an array has."""

    def is_in(self, version: int) -> bool:
        """Whether the version has the field."""
        return self.since <= version <= self.until

    def is_nullable(self, version: int) -> bool:
        """Whether the field may be null in the version."""
        return self.nullable_since is not None and version >= self.nullable_since


INT32: Final = FieldSpec(Kind.INT32)
"""The element of an array of numbers."""

INT64: Final = FieldSpec(Kind.INT64)
"""The same for large numbers."""

STRING: Final = FieldSpec(Kind.STRING)
"""The element of an array of strings."""


# The declarations have the type of the field's value for the type checker, as `dataclasses.field` does.
# ruff: noqa: ANN401


def _declared(spec: FieldSpec, default: object) -> Any:
    return field(default=default, metadata={METADATA_KEY: spec})


def boolean(*, since: int = 0, until: int = VERSION_MAX, default: bool = False, tag: int | None = None) -> Any:
    """Declare a boolean."""
    return _declared(FieldSpec(Kind.BOOL, since, until, tag=tag), default)


def int8(*, since: int = 0, until: int = VERSION_MAX, default: int = 0) -> Any:
    """Declare a signed number of one byte."""
    return _declared(FieldSpec(Kind.INT8, since, until), default)


def int16(*, since: int = 0, until: int = VERSION_MAX, default: int = 0, tag: int | None = None) -> Any:
    """Declare a signed number of two bytes."""
    return _declared(FieldSpec(Kind.INT16, since, until, tag=tag), default)


def int32(*, since: int = 0, until: int = VERSION_MAX, default: int = 0, tag: int | None = None) -> Any:
    """Declare a signed number of four bytes."""
    return _declared(FieldSpec(Kind.INT32, since, until, tag=tag), default)


def int64(*, since: int = 0, until: int = VERSION_MAX, default: int = 0, tag: int | None = None) -> Any:
    """Declare a signed number of eight bytes."""
    return _declared(FieldSpec(Kind.INT64, since, until, tag=tag), default)


def uuid(*, since: int = 0, until: int = VERSION_MAX) -> Any:
    """Declare the 16 bytes of an id. All zeros mean that there is none."""
    return _declared(FieldSpec(Kind.UUID, since, until), bytes(16))


def string(
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    default: str | None = "",
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare a string in UTF-8."""
    return _declared(FieldSpec(Kind.STRING, since, until, nullable_since, tag), default)


def byte_string(*, since: int = 0, until: int = VERSION_MAX, nullable_since: int | None = None) -> Any:
    """Declare bytes."""
    return _declared(FieldSpec(Kind.BYTES, since, until, nullable_since), b"")


def records(*, since: int = 0) -> Any:
    """Declare record batches, which may be null: `bytes` when read, bytes or a sequence of pieces when written."""
    return _declared(FieldSpec(Kind.RECORDS, since, nullable_since=0), None)


def struct(
    of: type[Any], *, since: int = 0, nullable_since: int | None = None, tag: int | None = None, default: object
) -> Any:
    """Declare a structure within this one."""
    return _declared(FieldSpec(Kind.STRUCT, since, nullable_since=nullable_since, tag=tag, element=of), default)


def array(
    of: type[Any] | FieldSpec,
    *,
    since: int = 0,
    until: int = VERSION_MAX,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """Declare an array of structures, or of plain values. Read as a tuple."""
    return _declared(FieldSpec(Kind.ARRAY, since, until, nullable_since, tag, of), ())
