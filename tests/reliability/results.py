"""The results of long experiments: lines of JSON that are only ever appended to."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
#: What paths begin with on this machine: the tree, temporary directories, Python and its packages.
ROOTS = [Path(__file__).parents[2], Path(tempfile.gettempdir()), sys.prefix, sys.base_prefix, Path.home()]


def read(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All records of a file so far."""
    file = folder / name
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def append(name: str, records: Iterable[dict[str, Any]], folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / name).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def without_places(text: str) -> str:
    """The text of a finding without the paths of this machine. Those of the tree become relative, others their last name."""
    text = text.replace(f"{ROOTS[0]}/", "")
    text = re.sub(r'"/[^"\n]*/([^"/\n]+\.py)"', r'"\1"', text)  # a line of a traceback
    for root in ROOTS:
        text = re.sub(rf"{re.escape(str(root))}(?:/[\w.+@~-]+)*/([\w.+@~-]+)", r"\1", text)
    return text
