"""The wire format of protocol buffers: a message is a row of numbered fields.

Only what is there is read: every length is held against the bytes that are left, and nothing
is allocated on a file's word alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from archlearn.errors import FileError
from archlearn.serialization.limits import Limit

# A row of numbers counts once: real files of a few hundred layers have some 20,000.
MAX_FIELDS = Limit("MAX_FIELDS", 250_000, "fields", "archlearn.models.protobuf")

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
        content: The bytes of any other kind; of a row of fixed-size fields all bytes.
    """

    number: int
    kind: int
    value: int
    content: memoryview


class FieldReader:
    """Reads the fields of messages inside one another, at most MAX_FIELDS in all."""

    def __init__(self) -> None:
        self._n_fields = 0

    def read(self, message: memoryview) -> Iterator[Field]:
        """Yield the fields of a message in the order they are written in.

        A row of fixed-size fields of one number, as numbers that are not packed make it, is
        yielded as one field with all their bytes.

        Raises:
            FileError: If the bytes are no message, end inside a field, or have too many.
        """
        place = 0
        while place < len(message):
            self._n_fields += 1
            MAX_FIELDS.check(self._n_fields)
            found, place = _read_field(message, place)
            yield found


def _read_field(message: memoryview, start: int) -> tuple[Field, int]:
    """Return the field that begins at a place, and the place behind it."""
    tag, place = read_varint(message, start)
    number, kind = tag >> 3, tag & 7
    if number == 0:
        raise FileError("it has a field with the number 0, which no message may have")
    if kind == VARINT:
        value, place = read_varint(message, place)
        return Field(number, kind, value, message[:0]), place
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
    if kind == BYTES:
        return Field(number, kind, 0, message[place : place + length]), place + length
    row = _read_row(message[start:], place - start, length)
    return Field(number, kind, 0, memoryview(row[:, place - start :].tobytes())), start + row.size


def _read_row(message: memoryview, n_tag: int, length: int) -> np.ndarray:
    """Return the fields of one tag that a message begins with, as an array with a line for each.

    It looks ahead twice as far each time, so that many short rows cost no more than a long one.
    """
    stride = n_tag + length
    n_possible, n_seen, n_ahead = len(message) // stride, 1, 8
    lines = np.frombuffer(message, np.uint8, n_possible * stride).reshape(n_possible, stride)
    while n_seen < n_possible:
        ahead = lines[n_seen : n_seen + n_ahead, :n_tag]
        same = (ahead == lines[0, :n_tag]).all(axis=1)
        if not same.all():
            return lines[: n_seen + int(same.argmin())]
        n_seen, n_ahead = n_seen + len(ahead), 2 * n_ahead
    return lines


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


def read_packed(field: Field, n_most: int) -> list[int]:
    """Return the numbers of a repeated field, packed into one or one by one.

    Raises:
        FileError: If there are more than `n_most`.
    """
    if field.kind == VARINT:
        return [field.value]
    numbers: list[int] = []
    place = 0
    while place < len(field.content):
        number, place = read_varint(field.content, place)
        numbers.append(number)
        if len(numbers) > n_most:
            raise FileError(f"its field {field.number} has more than {n_most} numbers")
    return numbers
