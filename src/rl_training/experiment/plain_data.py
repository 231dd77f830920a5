"""Plain data from YAML: text, numbers, true and false, lists, and mappings with text as keys. Everything else that YAML can
hold (dates, sets, bytes, lists that contain themselves) is refused, because a saved config could not hold it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Set
from typing import Any

import yaml

from rl_training.errors import ConfigError, one_line, shown

#: Limits of a config. They are far beyond any that a person writes, and stop texts of a few bytes that unfold to gigabytes.
MOST_LEVELS = 50
MOST_VALUES = 100_000
LARGEST_INTEGER = 2**63 - 1

#: YAML's names of types in plain words.
NAMES = {"int": "a whole number", "float": "a number", "bool": "true or false", "timestamp": "a date"}
DATE_TAG = "tag:yaml.org,2002:timestamp"
#: Where YAML's C library is, it writes the same several times as fast.
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(yaml.SafeLoader):
    """Refuses duplicate keys in a mapping, where YAML would silently keep the last one, and keys that are not text. A bare
    date is text."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            what, tag = shown(node.value), node.tag.rpartition(":")[2]
            if isinstance(node, yaml.ScalarNode) and tag == "int" and node.value.strip("+-").isdigit():
                problem = f"{what} is too large: whole numbers go up to {LARGEST_INTEGER}"
            else:
                problem = f"{what if isinstance(node, yaml.ScalarNode) else 'this'} is not {NAMES.get(tag, tag)}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def fetch_flow_collection_start(self, token_class: Any) -> None:
        self._require_shallow(self.flow_level)
        super().fetch_flow_collection_start(token_class)

    def add_indent(self, column: int) -> bool:
        self._require_shallow(len(self.indents))
        return super().add_indent(column)

    def _require_shallow(self, level: int) -> None:
        """Stops while reading, because reading takes a time that grows with the square of the depth."""
        if level > MOST_LEVELS:
            raise yaml.scanner.ScannerError(None, None, _TOO_DEEP, self.get_mark())

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise yaml.constructor.ConstructorError(None, None, "this is not a mapping", node.start_mark)
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            problem = _key_problem(key) or (f"duplicate key '{key}'" if key in seen else None)
            if problem is not None:
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != DATE_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, source: str) -> Any:
    """Plain data from YAML; ``source`` names the text in an error."""
    try:
        data = _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML: {_reason(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{source} cannot be used: {_TOO_DEEP}") from error
    require_plain(data, source)
    return data


def _reason(error: yaml.YAMLError) -> str:
    """What is wrong and where, without the excerpt that YAML adds on lines of its own."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return one_line(str(error)).replace(' in "<unicode string>",', ",")
    return f"{getattr(error, 'problem', None)} (line {mark.line + 1}, column {mark.column + 1})"


_TOO_DEEP = f"it is nested more than {MOST_LEVELS} levels deep, or contains itself"


def yaml_text(data: Any) -> str:
    """Plain data as YAML, in the order in which it is."""
    return str(yaml.dump(data, Dumper=_DUMPER, sort_keys=False))


def require_plain(data: Any, source: str) -> None:
    """Refuses data that no config can hold. Objects that are not YAML's are left to whoever knows what they should be."""
    left: list[tuple[Any, int]] = [(data, 0)]
    count = 0
    while left:
        value, level = left.pop()
        count += 1
        problem = _TOO_DEEP if level > MOST_LEVELS else None if value is None else _value_problem(value)
        if count > MOST_VALUES:
            problem = f"it has more than {MOST_VALUES} values"
        if problem is not None:
            raise ConfigError(f"{source} cannot be used: {problem}")
        if isinstance(value, Mapping):
            left.extend((inner, level + 1) for inner in value.values())
        elif isinstance(value, (list, tuple)):
            left.extend((inner, level + 1) for inner in value)


def _value_problem(value: Any) -> str | None:
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return f"a whole number in it has {value.bit_length()} bits, but numbers go up to {LARGEST_INTEGER}"
    if isinstance(value, Mapping):
        return next(filter(None, map(_key_problem, value)), None)
    if isinstance(value, (datetime.date, bytes, Set)):
        kind = {"date": "date", "datetime": "date", "bytes": "string of bytes"}.get(type(value).__name__, "set")
        return f"it holds a {kind} ({shown(value)}), which a config cannot; give text or a list"
    return None


def _key_problem(key: Any) -> str | None:
    if not isinstance(key, str):
        return f"the key {shown(key)} is not text; put it in quotes"
    return _text_problem(key)


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return f"{shown(text)} contains a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return f"{shown(text)} is not Unicode text that can be saved"
    return None
