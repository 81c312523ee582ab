"""Where things lie in a serialized tf.train.Example, so that a large one need not be read to know where its picture is.

    Example {1: Features {1: entry {1: name, 2: Feature {1 | 2 | 3: list {1: values}}}, 1: entry …}}

A message is fields one after another, each a tag (8 · number + type) and its content, which for messages and bytes begins with its
length; whole numbers are written seven bits a byte, lowest first (protobuf's wire format).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import TypeAlias

Buffer: TypeAlias = bytes | mmap

VARINT, EIGHT_BYTES, DELIMITED, FOUR_BYTES = 0, 1, 2, 5  # types of fields
BYTES, INTEGERS = 1, 3  # kinds of features


@dataclass(frozen=True)
class Field:
    """A field's number, and where its content lies: buffer[start:stop]."""

    number: int
    kind: int
    start: int
    stop: int


def fields(buffer: Buffer, start: int, stop: int) -> Iterator[Field]:
    """The fields of the message buffer[start:stop]."""
    while start < stop:
        tag, start = varint(buffer, start)
        kind, end = tag & 7, start
        if kind == DELIMITED:
            length, start = varint(buffer, start)
            end = start + length
        elif kind == VARINT:
            _, end = varint(buffer, start)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            end = start + (8 if kind == EIGHT_BYTES else 4)
        else:
            raise ValueError(f"a field of type {kind}")
        if end > stop:
            raise ValueError("a field ends behind its message")
        yield Field(tag >> 3, kind, start, end)
        start = end


def varint(buffer: Buffer, place: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    value = shift = 0
    while True:
        if place >= len(buffer) or shift > 63:
            raise ValueError("a number does not end")
        byte = buffer[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def features(buffer: Buffer, start: int, stop: int) -> dict[str, Field]:
    """The features of the Example buffer[start:stop] by name: the list of values of each, numbered by its kind."""
    found: dict[str, Field] = {}
    for block in fields(buffer, start, stop):
        for entry in fields(buffer, block.start, block.stop):
            parts = {part.number: part for part in fields(buffer, entry.start, entry.stop)}
            if 1 not in parts or 2 not in parts:
                raise ValueError("a feature without name or value")
            name = buffer[parts[1].start : parts[1].stop].decode()
            for values in fields(buffer, parts[2].start, parts[2].stop):
                found[name] = values
    return found


def only_bytes(buffer: Buffer, feature: Field) -> tuple[int, int]:
    """Where the one value of a feature of bytes begins and ends."""
    values = list(fields(buffer, feature.start, feature.stop)) if feature.number == BYTES else []
    if len(values) != 1:
        raise ValueError("not one value of bytes")
    return values[0].start, values[0].stop


def only_integer(buffer: Buffer, feature: Field) -> int:
    """The one value of a feature of whole numbers, which may be written by itself or, packed, as a list of one."""
    values = list(fields(buffer, feature.start, feature.stop)) if feature.number == INTEGERS else []
    if len(values) != 1:
        raise ValueError("not one whole number")
    number, end = varint(buffer, values[0].start)
    if end != values[0].stop:
        raise ValueError("not one whole number")
    return number - (1 << 64) if number >> 63 else number
