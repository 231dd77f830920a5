"""Reads from an ONNX file, without the package onnx, whether its weights are in other files."""

from __future__ import annotations

from collections.abc import Iterator

#: The messages of onnx.proto that lead to tensors: the number of a field, and the message that it holds.
MESSAGES: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
#: Fields of a tensor: the entries that name another file, and the location of its data.
EXTERNAL_DATA, DATA_LOCATION = 13, 14


def names_other_files(content: bytes) -> bool:
    """Whether a model has tensors in other files. Raises ``ValueError`` or ``IndexError`` if it is not a model."""
    left = [("model", memoryview(content))]
    while left:
        kind, message = left.pop()
        for number, value in _fields(message):
            if kind == "tensor" and (number == EXTERNAL_DATA or (number == DATA_LOCATION and value)):
                return True
            if number in MESSAGES[kind] and isinstance(value, memoryview):
                left.append((MESSAGES[kind][number], value))
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a protobuf message: numbers, and parts of the message."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        wire = tag & 7
        if wire == 0:
            value, at = _number(message, at)
            yield tag >> 3, value
            continue
        if wire == 2:
            size, at = _number(message, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"protobuf has no field of type {wire}")
        yield tag >> 3, message[at : at + size]
        at += size


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where the next field begins."""
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        at, shift, more = at + 1, shift + 7, message[at] & 0x80
        if not more:
            return value, at
