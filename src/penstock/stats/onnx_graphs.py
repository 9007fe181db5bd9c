"""Control flow in ONNX files, found by their wire format alone.

A file is a tree of protocol-buffer messages. Only the fields that lead to operators are followed
(graphs, nodes, attributes that hold graphs, functions), so neither weights nor the onnx package are
needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.stats.contents import Contents, UnreadableError

_CONDITIONALS = frozenset([b"If"])
_LOOPS = frozenset([b"Loop", b"Scan"])

#: For each message, what its fields hold that are followed.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node"},
    "function": {7: "node"},
    "node": {4: "operator", 5: "attribute"},
    "attribute": {6: "graph", 11: "graph"},
}

#: Bytes of the wire types that have a fixed length.
_FIXED = {1: 8, 5: 4}
_VARINT, _BYTES = 0, 2


def contents_of_onnx(file: Path) -> Contents:
    """What is in a file that holds an ONNX model."""
    try:
        operators = set(_operators(memoryview(file.read_bytes()), "model"))
    except (IndexError, ValueError) as error:
        raise UnreadableError(f"not an ONNX model: {error}") from error
    if not operators:
        raise UnreadableError("not an ONNX model: it has no operator")
    return Contents(bool(operators & _CONDITIONALS), bool(operators & _LOOPS))


def _operators(data: memoryview, message: str) -> Iterator[bytes]:
    for field, part in _parts(data):
        kind = _FIELDS[message].get(field)
        if kind == "operator":
            yield bytes(part)
        elif kind is not None:
            yield from _operators(part, kind)


def _parts(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields of a message that hold bytes, with their numbers."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind == _BYTES:
            length, at = _varint(data, at)
            yield field, data[at : at + length]
            at += length
        else:
            raise ValueError(f"field {field} has the unknown wire type {kind}")
    if at != len(data):
        raise ValueError("the file ends inside of a field")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
