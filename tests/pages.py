"""The pages of the documentation and their blocks of code.

``python`` and ``sh`` blocks of a page are run from top to bottom in one directory, the Python ones in one interpreter. A
block with a caption is a file: it is written there before the next one is run. Comments right before a block have orders:

    <!-- tests: skip needs a SLURM cluster -->                     is not run, for this reason
    <!-- tests: needs minatar -->                                  is run where this module is installed
    <!-- tests: replace 40000 => 2000 -->                          is run with other words, to be quick
    <!-- tests: exit 2 -->                                         ends with this code
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from moments import PATIENCE

from rl_training.arguments import make_parser

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: pages that are records, not instructions
RECORDS = ("adr", "plans")
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
INSTRUCTIONS = [page for page in PAGES if page.parent.name not in RECORDS]
RUN, SHOWN = ("python", "sh"), ("text", "{toctree}", "{include}")
PARSED: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "json": json.loads}
FENCE = re.compile(
    r"(?P<orders>(?:^<!-- tests: .*? -->\n+)*)^(?P<fence>```+)(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence) *$",
    re.MULTILINE | re.DOTALL,
)
OPTION = re.compile(r"\A(?::(\w+): (.*)\n)+\n?")
ORDER = re.compile(r"<!-- tests: (skip|needs|replace|exit) (.+?) -->")
INLINE = re.compile(r"`(rl-training [^`]+)`")


@dataclass
class Block:
    """A block of code on a page."""

    where: str  # page:line
    language: str
    body: str
    file: str | None = None
    skip: str | None = None
    exit: int = 0
    needs: list[str] = field(default_factory=list)
    replace: dict[str, str] = field(default_factory=dict)

    @property
    def missing(self) -> list[str]:
        """Modules that it needs and that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def problem(self) -> str | None:
        """What is wrong with the block, as far as can be seen without running it."""
        if self.skip is not None or self.language in SHOWN:
            return None
        absent = [old for old in self.replace if old not in self.body]
        if absent:
            return f"'{absent[0]}', which the tests are to replace, is not in the block"
        if self.language == "sh":
            return self._shell_problem()
        if self.language in PARSED:
            PARSED[self.language](self.body)
        elif self.language == "python":
            compile(self.body, self.where, "exec")
        elif self.file is None:
            return f"nothing is known about the language '{self.language}': add a comment <!-- tests: skip REASON -->"
        return None

    def _shell_problem(self) -> str | None:
        read = subprocess.run(["bash", "-n"], input=self.body, text=True, capture_output=True, check=False)
        if read.returncode:
            return read.stderr
        for command in commands(self.body):
            problem = command_problem(command)
            if problem is not None and not self.exit:
                return problem
        return None


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    return blocks_in(page.read_text("utf-8"), str(page.relative_to(ROOT)))


def blocks_in(text: str, name: str) -> list[Block]:
    """All fenced blocks of the text of a page."""
    found = []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("fence")) + 1
        language = match["info"].removeprefix("{code-block}").strip().partition(" ")[0]
        block = Block(f"{name}:{line}", language, match["body"])
        options = OPTION.match(block.body)
        if options is not None:
            block.body = block.body[options.end() :]
            block.file = dict(re.findall(r"^:(\w+): (.*)$", options[0], re.MULTILINE)).get("caption")
        for order, value in ORDER.findall(match["orders"]):
            _obey(block, order, value)
        found.append(block)
    return found


def _obey(block: Block, order: str, value: str) -> None:
    if order == "skip":
        block.skip = value
    elif order == "needs":
        block.needs += value.split()
    elif order == "exit":
        block.exit = int(value)
    else:
        old, _, new = value.partition(" => ")
        block.replace[old] = new


def commands(script: str) -> Iterator[list[str]]:
    """The calls of rl-training in a script, each as its arguments."""
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        arguments: list[str] | None = None
        for word in (*words, ";"):
            if set(word) <= set(";|&<>()"):
                if arguments is not None:
                    yield arguments
                arguments = None
            elif word == "rl-training":
                arguments = []
            elif arguments is not None:
                arguments.append(word)


def command_problem(arguments: list[str]) -> str | None:
    """Why the command line does not take these arguments, if it does not."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            make_parser().parse_args(arguments)
        except (SystemExit, argparse.ArgumentError) as error:
            return None if getattr(error, "code", 2) == 0 else errors.getvalue().splitlines()[-1]
    return None


DRIVER = """
import json, subprocess, sys
steps = json.load(open(sys.argv[1]))
for step in steps:
    print("#", step["where"], file=sys.stderr, flush=True)
    if step["file"] is not None:
        open(step["file"], "w").write(step["body"])
    elif step["language"] == "python":
        exec(compile(step["body"], step["where"], "exec"))
        sys.stdout.flush()
    else:
        code = subprocess.run(["bash", "-eu", "-o", "pipefail", "-c", step["body"]]).returncode
        if code != step["exit"]:
            sys.exit(f"exit code {code}, expected {step['exit']}, of:\\n{step['body']}")
"""


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs everything on a page that can be run here, in a directory that has the repository's examples."""
    steps = []
    for block in blocks_of(page):
        if (block.language in RUN or block.file is not None) and block.skip is None and not block.missing:
            for old, new in block.replace.items():
                block.body = block.body.replace(old, new)
            steps.append(asdict(block))
    (folder / "steps.json").write_text(json.dumps(steps), "utf-8")
    (folder / "examples").symlink_to(ROOT / "examples")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "PYTHONPATH": ""}
    command, patience = [sys.executable, "-c", DRIVER, "steps.json"], PATIENCE * len(steps)
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False, timeout=patience)
