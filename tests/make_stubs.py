"""Writes what is derived from the algorithms: ``rl_training/__init__.pyi``, from which editors and type checkers know the
arguments of every agent's constructor, and the README's tables, that of environments from the guide to them.

python tests/make_stubs.py
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import rl_training
from rl_training.api.signatures import parameters_of
from rl_training.experiment.registry import AlgorithmClass, built_in

STUB = Path(rl_training.__file__).with_suffix(".pyi")
ROOT = Path(__file__).parent.parent
TABLE = re.compile(r"(?<=\|---\|---\|---\|---\|---\|\n)(?:\| \[.*\n)+")
PACKAGES = re.compile(r"\| package \| extra \| command \|\n(?:\|.*\n)+")
OBSERVATIONS = {
    ("vector", "image", "mixed"): "vector, image, both",
    ("image", "mixed"): "image, with vectors beside it",
}
ACTIONS = {
    "discrete": "discrete, several choices",
    "multi_discrete": "",  # these take several choices too
    "continuous": "continuous",
    "unbounded": "unbounded",
}
WIDTH = 126
HEAD = '''\
"""Reinforcement learning that is provably right, resumes bit for bit, and is fast."""
# Written by `make stubs` from the models of the settings. Algorithms of other packages are typed as ManagedAlgorithm.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rl_training.api import Callback as Callback
from rl_training.api import ManagedAlgorithm as ManagedAlgorithm
from rl_training.api import load_agent as load_agent
from rl_training.api import load_exported as load_exported
from rl_training.api import managed as managed
from rl_training.api.environments import EnvLike

__version__: str
__all__: list[str]

def __getattr__(name: str) -> type[ManagedAlgorithm]: ...
'''


def stub_text() -> str:
    """The stub of this version."""
    return HEAD + "".join(map(_class_stub, built_in().values()))


def _class_stub(algorithm: AlgorithmClass) -> str:
    defaults = [f"{one.name}: {one.annotation} = {one.default!r}" for one in parameters_of(algorithm)]
    arguments = ", ".join(["self", "env: EnvLike", "*", *defaults])
    lines = textwrap.wrap(arguments, WIDTH - 8, break_long_words=False, break_on_hyphens=False)
    documentation = f"{algorithm.summary}. ``rl-training show {algorithm.name}`` prints what the settings mean."
    return (
        f"\nclass {algorithm.public_name}(ManagedAlgorithm):\n"
        f'    """{documentation[0].upper()}{documentation[1:]}"""\n\n'
        "    def __init__(\n" + "".join(f"        {line}\n" for line in lines) + "    ) -> None: ...\n"
    )


def readme_text() -> str:
    """The README with the table of this version's algorithms, and that of the guide to environments."""
    rows = "".join(map(_row, built_in().values()))
    guide = PACKAGES.search((ROOT / "docs" / "guides" / "other_environments.md").read_text("utf-8"))
    assert guide is not None
    text = TABLE.sub(lambda found: rows, (ROOT / "README.md").read_text("utf-8"), count=1)
    return PACKAGES.sub(lambda found: guide[0], text, count=1)


def _row(algorithm: AlgorithmClass) -> str:
    page = f"docs/algorithms/{algorithm.name}.md"
    title = (ROOT / page).read_text("utf-8").splitlines()[0].removeprefix("# ")
    actions = ", ".join(filter(None, (ACTIONS[kind] for kind in algorithm.actions)))
    observations = OBSERVATIONS[algorithm.observations]
    return f"| [{title}]({page}) | `{algorithm.name}` | `{algorithm.public_name}` | {observations} | {actions} |\n"


if __name__ == "__main__":
    STUB.write_text(stub_text(), "utf-8")
    (ROOT / "README.md").write_text(readme_text(), "utf-8")
