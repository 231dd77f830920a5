"""The documentation: what the pages show works, what they name exists, and the site builds without a warning."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_inserts
from pages import (
    DOCS,
    INLINE,
    INSTRUCTIONS,
    PAGES,
    ROOT,
    RUN,
    Block,
    blocks_in,
    blocks_of,
    command_problem,
    commands,
    run_page,
)
from site_algorithms import results, settings
from site_markdown import text
from site_reference import error_names, run_settings

from rl_training.cli import COMMANDS
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.packaged import packaged_configs
from rl_training.experiment.registry import built_in
from rl_training.experiment.settings import settings_of

LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
#: what a browser asks another server for when it shows a page
LOADED = re.compile(r"<(?:script|img|iframe)[^>]* src=\"(http[^\"]*)|<link[^>]* href=\"(http[^\"]*)")
INSERT_OF_API = re.compile(r"^<!-- insert: api ([\w.]+)((?: \w+)*) -->$", re.MULTILINE)


def short(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ------------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_block_and_command_is_well_formed(page: Path) -> None:
    problems = {block.where: problem for block in blocks_of(page) if (problem := block.problem()) is not None}
    assert not problems
    for command in INLINE.findall(page.read_text("utf-8")):
        if "--" in command and "..." not in command:  # otherwise it only names a command
            assert all(command_problem(arguments) is None for arguments in commands(command)), command


def test_a_block_that_is_neither_run_nor_explained_is_found() -> None:
    assert "skip REASON" in str(Block("page:1", "rust", "fn main() {}").problem())
    assert Block("page:1", "rust", "fn main() {}", skip="no compiler").problem() is None
    assert "unrecognized arguments: --vidoe" in str(Block("page:1", "sh", "rl-training eval RUN --vidoe x.gif").problem())
    assert "not in the block" in str(Block("page:1", "sh", "true", replace={"5000": "50"}).problem())
    with pytest.raises(SyntaxError):
        Block("page:1", "python", "def f(:").problem()


def test_calls_are_found_in_a_script() -> None:
    script = (
        "# rl-training nothing\nprintf x | rl-training predict runs/a > out; rl-training list && \\\n  rl-training show dqn"
    )
    assert list(commands(script)) == [["predict", "runs/a"], ["list"], ["show", "dqn"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in INSTRUCTIONS if any(b.language in RUN for b in blocks_of(page))], ids=short
)
def test_everything_on_a_page_runs(page: Path, tmp_path: Path) -> None:
    done = run_page(page, tmp_path)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


# ------------------------------------------------------------------------------------------------------------- links


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=short)
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text("utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


# --------------------------------------------------------------------------------------------------- what is generated


@pytest.mark.parametrize("algo", sorted(built_in()))
def test_every_algorithm_has_its_page_with_all_settings_and_configs(algo: str) -> None:
    page = DOCS / "algorithms" / f"{algo}.md"
    assert page.exists(), f"write {short(page)}, as for the other algorithms"
    source = page.read_text("utf-8")
    assert re.findall("^## (.*)", source, re.MULTILINE) == [
        "The update",
        "What is the paper's, and what is not",
        "When to use it",
        "Packaged configs",
        "Settings",
    ]
    filled = site_inserts.expanded(source)
    assert all(f"`{setting.name}`" in filled for setting in settings_of(built_in()[algo].config_class))
    assert all(f"### {config}\n" in filled for config in packaged_configs() if config.startswith(f"{algo}/"))
    assert "<!-- insert" not in filled


def test_settings_are_grouped_by_what_introduces_them_and_marked_if_they_may_change() -> None:
    found = settings("c51")
    assert found.index("**Settings of C51**") < found.index("`num_atoms`") < found.index("**Settings of the value family**")
    assert found.index("`prioritized`") < found.index("**Settings of every algorithm**") < found.index("`gamma`")
    assert "`learning_rate` ↻" in found
    assert "`gamma` ↻" not in found


def test_the_reference_is_whole() -> None:
    listed = run_settings()
    assert all(f"`{setting.name}`" in listed for setting in settings_of(TrainConfig))
    filled = site_inserts.expanded((DOCS / "reference" / "cli.md").read_text("utf-8"))
    assert all(f"\n## {name}\n" in filled for name in COMMANDS)
    assert "`--total-timesteps N`" in filled
    examples = blocks_in(filled, "cli")
    assert len(examples) == len(COMMANDS)
    assert [problem for block in examples if (problem := block.problem()) is not None] == []
    cures = (DOCS / "guides" / "troubleshooting.md").read_text("utf-8")
    assert [name for name in error_names() if f"\n## {name}\n" not in cures] == []


def test_charts_show_every_seed_and_every_workload() -> None:
    benchmarks = site_inserts.expanded((DOCS / "benchmarks.md").read_text("utf-8"))
    assert benchmarks.count("<details>") == 3  # the candidates, and two tables behind their charts
    assert all(f"<b>{name}</b>" in benchmarks for name in ("w1", "w4r", "replay"))
    assert benchmarks.count(">dqn/cartpole</a>") == 1
    drawn = site_inserts.expanded("<!-- insert: configs iqn -->")
    assert all(f"seed {seed}&quot;" in drawn for seed in results()[1]["iqn/cartpole"])


def test_text_of_the_code_is_no_markup() -> None:
    assert text("runs/<algo>: |x| * 2_000") == r"runs/\<algo\>: \|x\| \* 2\_000"


def test_every_public_name_is_documented() -> None:
    page = (DOCS / "reference" / "api.md").read_text("utf-8")
    undocumented = []
    for module_name, given in INSERT_OF_API.findall(page):
        module = importlib.import_module(module_name)
        for name in given.split() or module.__all__:
            value = getattr(module, name)
            if not inspect.getdoc(value):
                undocumented.append(f"{module_name}.{name}")
            if inspect.isclass(value) and given:  # of the building blocks, methods speak through their names
                methods = {key: getattr(value, key) for key in vars(value) if not key.startswith("_")}
                members = [key for key, one in methods.items() if callable(one) or isinstance(one, property)]
                undocumented += [f"{name}.{key}" for key in members if not inspect.getdoc(getattr(value, key))]
    assert undocumented == []
    public = importlib.import_module("rl_training").__dir__()
    agents = {algorithm.public_name for algorithm in built_in().values()}
    assert all(name in page for name in public if name not in agents and name != "__version__")


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nobody(tmp_path: Path) -> None:
    if importlib.util.find_spec("furo") is None:
        pytest.skip("rl-training[docs] is not installed")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), "site", "-d", "doctrees"]
    done = subprocess.run(command, text=True, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for page in (tmp_path / "site").rglob("*.html"):
        assert LOADED.findall(page.read_text("utf-8")) == [], page
