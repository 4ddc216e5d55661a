"""Messages from bytes and to bytes, by what their classes declare (`fields.py`).

`decoder(Class, version, is_flexible=...)` and `encoder(...)` build the functions of one version once. Neighbouring
fields of a fixed size are read and written together, which halves the time of small messages.

A client chooses every length. So the decoder checks that the bytes for it are there before it allocates or loops (E8).
A request has at most `ELEMENTS_MAX` elements. `codec_steps.py` reads and writes large messages in steps (E7).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, Final, TypeVar

from tidewire.wire.kafka.errors import MalformedRequest, RequestTooLarge
from tidewire.wire.kafka.fields import METADATA_KEY, FieldSpec, Kind

ELEMENTS_MAX: Final = 10_000
"""The most elements of all arrays and tagged fields in one request."""

_FIXED: Final = {
    Kind.BOOL: "?",
    Kind.INT8: "b",
    Kind.INT16: "h",
    Kind.INT32: "i",
    Kind.INT64: "q",
    Kind.UUID: "16s",
}

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_VARINT_BYTES_MAX: Final = 5
_STRING_BYTES_MAX: Final = 0x7FFF
_PRESENT: Final = b"\x01"
_ABSENT: Final = b"\xff"
_NEGATIVE: Final = 0x80

Message = TypeVar("Message")


class Input:
    """The bytes of one request, and how far they are read."""

    __slots__ = ("at", "data", "elements_left", "view")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.view = memoryview(data)
        self.at = at
        self.elements_left = ELEMENTS_MAX

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, not copied."""
        start, self.at = self.at, self.at + size
        if size < 0 or self.at > len(self.data):
            raise MalformedRequest(f"a field of {size} bytes is longer than its request")
        return self.view[start : self.at]

    def unsigned_varint(self) -> int:
        """A number in groups of seven bits, the lowest group first."""
        data, value = self.data, 0
        for number in range(_VARINT_BYTES_MAX):
            if self.at >= len(data):
                raise MalformedRequest("the request ends within a number")
            byte = data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return value
        raise MalformedRequest("a number of variable length has more than five bytes")

    def count_elements(self, count: int) -> int:
        """Check the length of an array before it is read. Each element has at least one byte."""
        if count > len(self.data) - self.at:
            raise MalformedRequest(f"an array of {count} elements is longer than its request")
        self.elements_left -= count
        if self.elements_left < 0:
            raise RequestTooLarge(f"a request may have at most {ELEMENTS_MAX} elements")
        return count


Read = Callable[[Input], Any]
Pieces = list[bytes]
Write = Callable[[Pieces, Any], None]


_decoders: dict[tuple[object, int, bool], Read] = {}
_encoders: dict[tuple[object, int, bool], Write] = {}


def decoder(message: type[Message], version: int, *, is_flexible: bool) -> Callable[[Input], Message]:
    """The function that reads a message of this version.

    It raises MalformedRequest or RequestTooLarge. Bytes behind the message are ignored, because some clients send them.
    """
    key = (message, version, is_flexible)
    if key not in _decoders:
        _decoders[key] = _build_decoder(message, version, is_flexible=is_flexible)
    return _decoders[key]


def encoder(message: type[Message], version: int, *, is_flexible: bool) -> Callable[[Pieces, Message], None]:
    """The function that appends the bytes of a message of this version to a list of pieces."""
    key = (message, version, is_flexible)
    if key not in _encoders:
        _encoders[key] = _build_encoder(message, version, is_flexible=is_flexible)
    return _encoders[key]


def _build_decoder(message: type[Message], version: int, *, is_flexible: bool) -> Callable[[Input], Message]:
    present = specs(message)
    steps: list[tuple[struct.Struct | None, Read | None, tuple[Any, ...]]] = []
    tagged: dict[int, tuple[int, Read]] = {}
    fixed = ""
    for number, (_name, spec, default) in enumerate(present):
        code = _FIXED.get(spec.kind)
        if spec.tag is not None:
            if is_flexible and spec.is_in(version):
                tagged[spec.tag] = (number, reader(spec, version, is_flexible=True))
        elif spec.is_in(version) and code is not None:
            fixed += code
            continue
        if fixed:
            steps.append((struct.Struct(">" + fixed), None, ()))
            fixed = ""
        if spec.tag is None and spec.is_in(version):
            steps.append((None, reader(spec, version, is_flexible=is_flexible), ()))
        else:
            steps.append((None, None, (default,)))
    if fixed:
        steps.append((struct.Struct(">" + fixed), None, ()))

    def decode(given: Input) -> Message:
        values: list[Any] = []
        for several, read, defaults in steps:
            if several is not None:
                try:
                    values += several.unpack_from(given.data, given.at)
                except struct.error:
                    raise MalformedRequest("the request ends within a field") from None
                given.at += several.size
            elif read is not None:
                values.append(read(given))
            else:
                values += defaults
        if is_flexible:
            read_tagged(given, tagged, values)
        return message(*values)

    return decode


def read_tagged(given: Input, known: dict[int, tuple[int, Read]], values: list[Any]) -> None:
    """Read the tagged fields of a structure into its values. `known` has the place and the reader of each tag."""
    for _ in range(given.count_elements(given.unsigned_varint())):
        tag, size = given.unsigned_varint(), given.unsigned_varint()
        start = given.at
        given.take(size)
        if tag in known:
            number, read = known[tag]
            given.at, end = start, given.at
            values[number] = read(given)
            if given.at != end:
                raise MalformedRequest(f"the tagged field {tag} has another size than it says")


def reader(spec: FieldSpec, version: int, *, is_flexible: bool) -> Read:
    """The function that reads a field of this version."""
    nullable = spec.is_nullable(version)
    if spec.kind in _FIXED:
        return _fixed_reader(struct.Struct(">" + _FIXED[spec.kind]))
    if spec.kind is Kind.STRUCT:
        assert isinstance(spec.element, type), "a structure has a class"
        read = decoder(spec.element, version, is_flexible=is_flexible)
        return _nullable_reader(read) if nullable else read
    length = _compact_length if is_flexible else _short_length if spec.kind is Kind.STRING else _long_length
    if spec.kind is Kind.STRING:
        return _string_reader(length, nullable=nullable)
    if spec.kind is Kind.ARRAY:
        element = spec.element
        if isinstance(element, FieldSpec):
            return _array_reader(length, reader(element, version, is_flexible=is_flexible), nullable=nullable)
        assert element is not None, "an array has elements"
        return _array_reader(length, decoder(element, version, is_flexible=is_flexible), nullable=nullable)
    return _bytes_reader(length, nullable=nullable)


def _nullable_reader(read: Read) -> Read:
    """A structure that may be null stands behind one byte, which is negative if it is."""

    def read_if_there(given: Input) -> Any:  # noqa: ANN401
        return None if given.take(1)[0] >= _NEGATIVE else read(given)

    return read_if_there


def _fixed_reader(form: struct.Struct) -> Read:
    def read(given: Input) -> Any:  # noqa: ANN401
        return form.unpack(given.take(form.size))[0]

    return read


def _string_reader(length: Callable[[Input], int], *, nullable: bool) -> Read:
    def read(given: Input) -> str | None:
        size = length(given)
        if size < 0:
            _require_nullable(nullable=nullable)
            return None
        if size > _STRING_BYTES_MAX:
            raise MalformedRequest(f"a string of {size} bytes is too long")
        try:
            return str(given.take(size), "utf-8")
        except UnicodeDecodeError:
            raise MalformedRequest("a string is not UTF-8") from None

    return read


def _bytes_reader(length: Callable[[Input], int], *, nullable: bool) -> Read:
    def read(given: Input) -> bytes | None:
        size = length(given)
        if size < 0:
            _require_nullable(nullable=nullable)
            return None
        return bytes(given.take(size))

    return read


def _array_reader(length: Callable[[Input], int], element: Read, *, nullable: bool) -> Read:
    def read(given: Input) -> tuple[Any, ...] | None:
        count = length(given)
        if count < 0:
            _require_nullable(nullable=nullable)
            return None
        return tuple([element(given) for _ in range(given.count_elements(count))])

    return read


def read_array_length(given: Input, *, is_flexible: bool, nullable: bool) -> int | None:
    """How many elements an array has; None if it is null."""
    count = _compact_length(given) if is_flexible else _long_length(given)
    if count < 0:
        _require_nullable(nullable=nullable)
        return None
    return given.count_elements(count)


def array_length(count: int, *, is_flexible: bool) -> bytes:
    """The bytes in front of an array of so many elements; -1 stands for null."""
    return _put_compact_length(count) if is_flexible else _put_long(count)


def _require_nullable(*, nullable: bool) -> None:
    if not nullable:
        raise MalformedRequest("a field that must have a value is null")


def _compact_length(given: Input) -> int:
    return given.unsigned_varint() - 1


def _short_length(given: Input) -> int:
    return int(_INT16.unpack(given.take(_INT16.size))[0])


def _long_length(given: Input) -> int:
    return int(_INT32.unpack(given.take(_INT32.size))[0])


def _build_encoder(message: type[Message], version: int, *, is_flexible: bool) -> Callable[[Pieces, Message], None]:
    steps: list[tuple[struct.Struct | None, tuple[str, ...], Write | None]] = []
    tagged: list[tuple[int, str, Any, Write]] = []
    fixed, names = "", ()  # type: str, tuple[str, ...]
    for name, spec, default in specs(message):
        if not spec.is_in(version):
            continue
        code = _FIXED.get(spec.kind)
        if spec.tag is not None:
            if is_flexible:
                tagged.append((spec.tag, name, default, writer(spec, version, is_flexible=True)))
        elif code is not None:
            fixed, names = fixed + code, (*names, name)
        else:
            if fixed:
                steps.append((struct.Struct(">" + fixed), names, None))
                fixed, names = "", ()
            steps.append((None, (name,), writer(spec, version, is_flexible=is_flexible)))
    if fixed:
        steps.append((struct.Struct(">" + fixed), names, None))
    tagged.sort(key=lambda each: each[0])

    def encode(pieces: Pieces, value: Message) -> None:
        for several, of, write in steps:
            if several is not None:
                pieces.append(several.pack(*[getattr(value, name) for name in of]))
            else:
                assert write is not None, "a step has fixed fields or one field"
                write(pieces, getattr(value, of[0]))
        if is_flexible:
            write_tagged(pieces, value, tagged)

    return encode


def write_tagged(pieces: Pieces, value: object, tagged: Sequence[tuple[int, str, Any, Write]]) -> None:
    """Append the tagged fields of a structure that differ from their defaults. They are in the order of their tags."""
    given = [
        (tag, getattr(value, name), write) for tag, name, default, write in tagged if getattr(value, name) != default
    ]
    pieces.append(unsigned_varint(len(given)))
    for tag, each, write in given:
        inner: Pieces = []
        write(inner, each)
        pieces += [unsigned_varint(tag), unsigned_varint(sum(map(len, inner))), *inner]


def writer(spec: FieldSpec, version: int, *, is_flexible: bool) -> Write:
    """The function that appends a field of this version."""
    if spec.kind in _FIXED:
        return _fixed_writer(struct.Struct(">" + _FIXED[spec.kind]))
    if spec.kind is Kind.STRUCT:
        assert isinstance(spec.element, type), "a structure has a class"
        write = encoder(spec.element, version, is_flexible=is_flexible)
        return _nullable_writer(write) if spec.is_nullable(version) else write
    length = _put_compact_length if is_flexible else _put_short if spec.kind is Kind.STRING else _put_long
    if spec.kind is Kind.STRING:
        return _string_writer(length)
    if spec.kind is Kind.ARRAY:
        element = spec.element
        if isinstance(element, FieldSpec):
            return _array_writer(length, writer(element, version, is_flexible=is_flexible))
        assert element is not None, "an array has elements"
        return _array_writer(length, encoder(element, version, is_flexible=is_flexible))
    return _records_writer(length) if spec.kind is Kind.RECORDS else _bytes_writer(length)


def _nullable_writer(write: Write) -> Write:
    def write_if_there(pieces: Pieces, value: object) -> None:
        pieces.append(_ABSENT if value is None else _PRESENT)
        if value is not None:
            write(pieces, value)

    return write_if_there


def _fixed_writer(form: struct.Struct) -> Write:
    def write(pieces: Pieces, value: object) -> None:
        pieces.append(form.pack(value))

    return write


def _string_writer(length: Callable[[int], bytes]) -> Write:
    def write(pieces: Pieces, value: str | None) -> None:
        if value is None:
            pieces.append(length(-1))
        else:
            data = value.encode()
            pieces += (length(len(data)), data)

    return write


def _bytes_writer(length: Callable[[int], bytes]) -> Write:
    def write(pieces: Pieces, value: bytes | None) -> None:
        pieces += (length(-1),) if value is None else (length(len(value)), value)

    return write


def _records_writer(length: Callable[[int], bytes]) -> Write:
    def write(pieces: Pieces, value: bytes | Sequence[bytes] | None) -> None:
        if value is None:
            pieces.append(length(-1))
        else:
            several = (value,) if isinstance(value, bytes) else value
            pieces += (length(sum(map(len, several))), *several)

    return write


def _array_writer(length: Callable[[int], bytes], element: Write) -> Write:
    def write(pieces: Pieces, value: Sequence[Any] | None) -> None:
        if value is None:
            pieces.append(length(-1))
            return
        pieces.append(length(len(value)))
        for each in value:
            element(pieces, each)

    return write


def unsigned_varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest group first."""
    if value < 0x80:
        return _SMALL[value]
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


_SMALL: Final = tuple(bytes([value]) for value in range(0x80))


def _put_compact_length(length: int) -> bytes:
    return unsigned_varint(length + 1)


def _put_short(length: int) -> bytes:
    return _INT16.pack(length)


def _put_long(length: int) -> bytes:
    return _INT32.pack(length)


def specs(message: type[Any]) -> list[tuple[str, FieldSpec, Any]]:
    """The fields of a message: name, declaration and default."""
    return [(each.name, each.metadata[METADATA_KEY], each.default) for each in dataclass_fields(message)]
