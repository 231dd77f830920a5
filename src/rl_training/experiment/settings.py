"""The settings of a model by name, type, default, range and meaning, for ``show``, ``help()`` and type stubs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

#: the constraints of a type, and how they are written
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
_TYPES = {
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "string": "str",
    "null": "None",
    "object": "Mapping[str, Any]",
}


class Setting(NamedTuple):
    """One setting of a model."""

    name: str
    annotation: str  # as in Python
    default: Any
    bounds: str  # such as "at least 1"; empty if there are none
    meaning: str

    def line(self) -> str:
        """One line of text: what it is, its type and range, and its default, as in a config."""
        return f"{self.name}: {self.meaning} ({self._kind()}; default {json.dumps(self.default)})"

    def python_line(self) -> str:
        """``line``, in the notation of Python."""
        return f"{self.name}: {self.meaning.replace('null', 'None')} ({self._kind()}; default {self.default!r})"

    def _kind(self) -> str:
        return f"{self.annotation}, {self.bounds}" if self.bounds else self.annotation


@functools.cache
def settings_of(model: type[BaseModel]) -> tuple[Setting, ...]:
    """The settings of a model with plain values, in their order. Those without a default, and groups, are left out."""
    schema = model.model_json_schema()
    found = []
    for name, info in ((info.alias or name, info) for name, info in model.model_fields.items()):
        field = schema["properties"][name]
        if not info.is_required() and "$ref" not in field:
            default = field["default"] if "default" in field else info.get_default(call_default_factory=True)
            meaning = str(field.get("description", ""))
            found.append(Setting(name, _annotation(field), _fixed(default), _bounds(info), meaning))
    return tuple(found)


def _fixed(value: Any) -> Any:
    """A default with tuples for lists."""
    return tuple(map(_fixed, value)) if isinstance(value, list) else value


def groups_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The groups of settings of a model, by name."""
    fields = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: kind for name, kind in fields.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _annotation(field: Mapping[str, Any]) -> str:
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        return " | ".join(map(_annotation, options))
    if "$ref" in field:  # a schedule
        return _TYPES["object"]
    if "enum" in field:
        return f"Literal[{', '.join(map(json.dumps, field['enum']))}]"
    if "const" in field:
        return f"Literal[{json.dumps(field['const'])}]"
    if field.get("type") == "array":
        items = field.get("items") or next(iter(field.get("prefixItems", ())), None)
        return f"Sequence[{_annotation(items)}]" if isinstance(items, Mapping) and items else "Sequence[Any]"
    return _TYPES.get(str(field.get("type")), "Any")


def _bounds(field: FieldInfo) -> str:
    found = {name: value for part in _parts(field) for name, _ in _BOUNDS if (value := getattr(part, name, None)) is not None}
    return " and ".join(f"{words} {found[name]:g}" for name, words in _BOUNDS if name in found)


def _parts(annotated: Any) -> Iterator[Any]:
    """Everything that may hold a bound of a setting: the constraints of its type, and of each type in a union."""
    if isinstance(annotated, FieldInfo):
        yield from annotated.metadata
        yield from _parts(annotated.annotation)
        return
    for part in getattr(annotated, "__metadata__", ()):
        yield part
        if isinstance(part, FieldInfo):
            yield from part.metadata
    if get_origin(annotated) in (Annotated, Union, UnionType):
        for inner in get_args(annotated):
            yield from _parts(inner)
