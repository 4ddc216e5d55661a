"""Large messages from bytes and to bytes, in steps that an event loop can take (E7).

A request may have thousands of partitions, and a response many more. `codec.py` reads and writes such a message in one
step, which may take tens of milliseconds. Here the arrays of a message, and the arrays within their elements, have a
pause after every `ELEMENTS_AT_ONCE` elements. Everything else is read and written by `codec.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tidewire.wire.kafka.codec import (
    Input,
    Pieces,
    Read,
    Write,
    array_length,
    decoder,
    encoder,
    read_array_length,
    read_tagged,
    reader,
    specs,
    write_tagged,
    writer,
)
from tidewire.wire.kafka.fields import FieldSpec, Kind
from tidewire.wire.steps import Steps

ELEMENTS_AT_ONCE: Final = 512
"""Elements that one step reads or writes. Each takes a few microseconds."""

Message = TypeVar("Message")


class _Turn:
    """Counts the elements of one message since its last pause."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def is_over(self) -> bool:
        """Count one element. Returns whether there is a pause behind it."""
        self._count += 1
        if self._count < ELEMENTS_AT_ONCE:
            return False
        self._count = 0
        return True


ReadSteps = Callable[[Input, _Turn], Steps[Any]]
WriteSteps = Callable[[Pieces, Any, _Turn], Steps[None]]

_readers: Final[dict[tuple[object, int, bool], ReadSteps]] = {}
_writers: Final[dict[tuple[object, int, bool], WriteSteps]] = {}


def decode_steps(message: type[Message], version: int, given: Input, *, is_flexible: bool) -> Steps[Message]:
    """The message of this version that stands in `given`. It raises what `decoder` says."""
    return _message_reader(message, version, is_flexible=is_flexible)(given, _Turn())


def encode_steps(pieces: Pieces, message: object, version: int, *, is_flexible: bool) -> Steps[None]:
    """Append the bytes of a message of this version to a list of pieces."""
    return _message_writer(type(message), version, is_flexible=is_flexible)(pieces, message, _Turn())


def _message_reader(message: type[Any], version: int, *, is_flexible: bool) -> ReadSteps:
    key = (message, version, is_flexible)
    if key not in _readers:
        _readers[key] = _build_reader(message, version, is_flexible=is_flexible)
    return _readers[key]


def _message_writer(message: type[Any], version: int, *, is_flexible: bool) -> WriteSteps:
    key = (message, version, is_flexible)
    if key not in _writers:
        _writers[key] = _build_writer(message, version, is_flexible=is_flexible)
    return _writers[key]


def _build_reader(message: type[Any], version: int, *, is_flexible: bool) -> ReadSteps:
    fields: list[tuple[Read | None, ReadSteps | None, Any]] = []
    tagged: dict[int, tuple[int, Read]] = {}
    for number, (_name, spec, default) in enumerate(specs(message)):
        read, steps = None, None
        if not spec.is_in(version):
            pass
        elif spec.tag is not None:
            if is_flexible:
                tagged[spec.tag] = (number, reader(spec, version, is_flexible=True))
        elif spec.kind is Kind.ARRAY:
            steps = _array_reader(spec, version, is_flexible=is_flexible)
        else:
            read = reader(spec, version, is_flexible=is_flexible)
        fields.append((read, steps, default))

    def decode(given: Input, turn: _Turn) -> Steps[Any]:
        values: list[Any] = []
        for read, steps, default in fields:
            if read is not None:
                values.append(read(given))
            elif steps is not None:
                values.append((yield from steps(given, turn)))
            else:
                values.append(default)
        if is_flexible:
            read_tagged(given, tagged, values)
        return message(*values)

    return decode


def _array_reader(spec: FieldSpec, version: int, *, is_flexible: bool) -> ReadSteps:
    nullable, element = spec.is_nullable(version), spec.element
    assert element is not None, "an array has elements"
    in_steps: ReadSteps | None = None
    if isinstance(element, FieldSpec):
        at_once: Read = reader(element, version, is_flexible=is_flexible)
    else:
        at_once = decoder(element, version, is_flexible=is_flexible)
        if _has_arrays(element, version):
            in_steps = _message_reader(element, version, is_flexible=is_flexible)

    def read(given: Input, turn: _Turn) -> Steps[Any]:
        count = read_array_length(given, is_flexible=is_flexible, nullable=nullable)
        if count is None:
            return None
        found = []
        for _ in range(count):
            found.append(at_once(given) if in_steps is None else (yield from in_steps(given, turn)))
            if turn.is_over():
                yield
        return tuple(found)

    return read


def _build_writer(message: type[Any], version: int, *, is_flexible: bool) -> WriteSteps:
    fields: list[tuple[str, Write | None, WriteSteps | None]] = []
    tagged: list[tuple[int, str, Any, Write]] = []
    for name, spec, default in specs(message):
        if not spec.is_in(version):
            continue
        if spec.tag is not None:
            if is_flexible:
                tagged.append((spec.tag, name, default, writer(spec, version, is_flexible=True)))
        elif spec.kind is Kind.ARRAY:
            fields.append((name, None, _array_writer(spec, version, is_flexible=is_flexible)))
        else:
            fields.append((name, writer(spec, version, is_flexible=is_flexible), None))
    tagged.sort(key=lambda each: each[0])

    def encode(pieces: Pieces, value: Any, turn: _Turn) -> Steps[None]:  # noqa: ANN401
        for name, write, steps in fields:
            if write is not None:
                write(pieces, getattr(value, name))
            elif steps is not None:
                yield from steps(pieces, getattr(value, name), turn)
        if is_flexible:
            write_tagged(pieces, value, tagged)

    return encode


def _array_writer(spec: FieldSpec, version: int, *, is_flexible: bool) -> WriteSteps:
    element = spec.element
    assert element is not None, "an array has elements"
    in_steps: WriteSteps | None = None
    if isinstance(element, FieldSpec):
        at_once: Write = writer(element, version, is_flexible=is_flexible)
    else:
        at_once = encoder(element, version, is_flexible=is_flexible)
        if _has_arrays(element, version):
            in_steps = _message_writer(element, version, is_flexible=is_flexible)

    def write(pieces: Pieces, value: Sequence[Any] | None, turn: _Turn) -> Steps[None]:
        pieces.append(array_length(-1 if value is None else len(value), is_flexible=is_flexible))
        for each in value or ():
            if in_steps is None:
                at_once(pieces, each)
            else:
                yield from in_steps(pieces, each, turn)
            if turn.is_over():
                yield

    return write


def _has_arrays(message: type[Any], version: int) -> bool:
    return any(
        spec.kind is Kind.ARRAY and spec.tag is None and spec.is_in(version) for _name, spec, _default in specs(message)
    )
