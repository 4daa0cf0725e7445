"""The wire format of protocol buffers: a message is a row of numbered fields.

Only what is there is read: every length is held against the bytes that are left, and nothing
is allocated on a file's word alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from archlearn.errors import FileError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_FIXED = {FIXED64: 8, FIXED32: 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        number: What the schema calls it by.
        kind: How it is written: VARINT, FIXED64, BYTES or FIXED32.
        value: The number of a VARINT, else 0.
        content: The bytes of any other kind.
    """

    number: int
    kind: int
    value: int
    content: memoryview


def read_fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a message in the order they are written in.

    Raises:
        FileError: If the bytes are no message, or end inside a field.
    """
    place = 0
    while place < len(message):
        tag, place = read_varint(message, place)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise FileError("it has a field with the number 0, which no message may have")
        if kind == VARINT:
            value, place = read_varint(message, place)
            yield Field(number, kind, value, message[:0])
            continue
        if kind == BYTES:
            length, place = read_varint(message, place)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise FileError(f"its field {number} is of the kind {kind}, which is not in use")
        if length > len(message) - place:
            raise FileError(
                f"its field {number} promises {length} bytes, but {len(message) - place} are left"
            )
        yield Field(number, kind, 0, message[place : place + length])
        place += length


def read_varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the number that begins at a place, and the place behind it."""
    value = 0
    for count in range(_LONGEST_VARINT):
        if place + count >= len(message):
            raise FileError("it ends inside a number")
        byte = message[place + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place + count + 1
    raise FileError("it has a number of more than ten bytes")


def read_packed(field: Field) -> list[int]:
    """Return the numbers of a repeated field, packed into one or one by one."""
    if field.kind == VARINT:
        return [field.value]
    numbers: list[int] = []
    place = 0
    while place < len(field.content):
        number, place = read_varint(field.content, place)
        numbers.append(number)
    return numbers
