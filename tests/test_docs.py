"""The documentation: what the pages show works, what they name exists, and the site builds without a warning."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_inserts
import site_links
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
from rl_training.experiment.packaged import about, packaged_configs
from rl_training.experiment.registry import built_in
from rl_training.experiment.settings import settings_of

LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
INSERT_OF_API = re.compile(r"^<!-- insert: api ([\w.]+)((?: \w+)*) -->$", re.MULTILINE)


def short(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ------------------------------------------------------------------------------------------------------------ blocks


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_every_block_and_command_is_well_formed(page: Path) -> None:
    problems = {block.where: problem for block in blocks_of(page) if (problem := block.problem()) is not None}
    assert not problems
    source = page.read_text("utf-8")
    assert re.findall(r"^[ >]+```.*", source, re.MULTILINE) == [], "indented blocks are not run"
    for command in INLINE.findall(source):
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


def test_links_of_the_finished_site_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "b.html").write_text('<h1 id="here">b</h1><a href="../a.html#there">a</a><a href="c.html">c</a>')
    (tmp_path / "a.html").write_text(
        '<a name="top"></a><a href="other/b.html#here">b</a><a href="#top">up</a><a href="#nowhere">down</a>'
        '<a href="https://example.org/x">far</a><img src="https://example.org/y.png">'
        '<img src="z.png"><img src="data:image/gif;,">'
    )
    assert list(site_links.problems(tmp_path)) == [
        "a.html loads https://example.org/y.png from another server",
        "a.html links to #nowhere, and that page has no such place",
        "a.html links to z.png, which does not exist",
        "other/b.html links to ../a.html#there, and that page has no such place",
        "other/b.html links to c.html, which does not exist",
    ]


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
    assert "seeds of ppo/" not in site_inserts.expanded("<!-- insert: configs recurrent_ppo -->"), (
        "their controls are complete"
    )


def test_a_config_is_described_by_the_first_sentence_of_its_comment(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    for rest in ("docs/page.md explains it.", "It needs pip install 'x'.", ""):
        config.write_text(f"# DQN (Mnih et al. 2015)\n# on CartPole-v1. {rest}\nalgo: dqn\n")
        assert about(config) == "DQN (Mnih et al. 2015) on CartPole-v1"


def test_text_of_the_code_is_no_markup() -> None:
    assert text("runs/<algo>: |x| * 2_000") == r"runs/\<algo\>: \|x\| \* 2\_000"
    assert text("a_b ``c_d`` (see `list|*`) `") == r"a\_b `c_d` (see `list\|*`) \`"


def test_settings_that_are_one_of_a_few_words_show_them() -> None:
    listed = run_settings()
    assert "where environments run *(inline or subprocess)*" in listed
    assert "*(lockstep, pipelined or free)*" in listed


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
def test_the_site_builds_without_a_warning_or_a_broken_link(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), "site", "-d", "doctrees"]
    done = subprocess.run(command, text=True, capture_output=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "site").rglob("*.html"))) >= len(list(DOCS.rglob("*.md")))
