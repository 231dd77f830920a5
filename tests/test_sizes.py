"""Files and classes stay small enough to be read at a sitting."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
FILE, CLASS = 400, 250  # lines


def test_no_file_and_no_class_is_too_long() -> None:
    sizes = {}
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        sizes[path.name] = (len(text.splitlines()), FILE)
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.end_lineno is not None:
                sizes[f"{path.name}:{node.name}"] = (node.end_lineno + 1 - node.lineno, CLASS)
    assert len(sizes) > 300
    assert {name: size for name, (size, limit) in sizes.items() if size >= limit} == {}
