"""The results of long experiments: lines of JSON that are only ever appended to."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def read(name: str, folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All records of a file so far."""
    file = folder / name
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def append(name: str, records: Iterable[dict[str, Any]], folder: Path = FOLDER) -> None:
    folder.mkdir(exist_ok=True)
    with (folder / name).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
