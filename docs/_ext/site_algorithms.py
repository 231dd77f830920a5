"""What the algorithms say of themselves, and what was measured of their packaged configs."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from pydantic import BaseModel
from site_markdown import code, first_sentence, fold, html, table, text

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.algorithms.strict_model import StrictModel, may_change
from rl_training.bench.references import Reference, load_entries
from rl_training.bench.report import of_entries, verdict_of
from rl_training.bench.store import Outcomes, by_seed, load_results
from rl_training.experiment.config import load_config_data
from rl_training.experiment.packaged import about, packaged_configs
from rl_training.experiment.plain_data import yaml_text
from rl_training.experiment.registry import AlgorithmClass, built_in, get_algorithm
from rl_training.experiment.settings import Setting, settings_of
from rl_training.runtime.svg import Line, line_chart

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
KINDS = {"vector": "vectors", "image": "images", "mixed": "both in one", "multi_discrete": "several choices"}


def kinds(names: tuple[str, ...]) -> str:
    """Kinds of spaces in plain words."""
    return ", ".join(KINDS.get(name, name) for name in names)


def learns_from(algorithm: AlgorithmClass) -> str:
    """Where an algorithm's experience comes from."""
    return "its own rollouts" if issubclass(algorithm, OnPolicyAlgorithm) else "replayed experience"


def overview() -> str:
    """All algorithms in one table."""
    rows = [
        (
            f"[{text(algorithm.public_name)}]({name}.md)<br>{code(name)}",
            kinds(algorithm.observations),
            kinds(algorithm.actions),
            learns_from(algorithm),
            text(algorithm.summary),
        )
        for name, algorithm in built_in().items()
    ]
    return table(("agent, key", "observations", "actions", "learns from", "in a line"), rows)


def facts(name: str) -> str:
    """The algorithm's names and spaces."""
    algorithm = get_algorithm(name)
    module = algorithm.__module__.replace(".", "/")
    rows = [
        ("key in a config", code(f"algo: {name}")),
        ("agent in Python", code(f"rl_training.{algorithm.public_name}")),
        ("observations", kinds(algorithm.observations)),
        ("actions", kinds(algorithm.actions)),
        ("learns from", learns_from(algorithm)),
        ("its file", f"[{module.rpartition('/')[2]}.py](../../src/{module}.py)"),
    ]
    return table(("", ""), rows)


# ---------------------------------------------------------------------------------------------------------- settings


def settings(name: str) -> str:
    """Every setting of an algorithm, with those of its own before those that many have."""
    model = get_algorithm(name).config_class
    by_name = {setting.name: setting for setting in settings_of(model)}
    parts = []
    for base, names in _introduced(model):
        rows = [setting_row(model, by_name[one]) for one in names]
        parts.append(f"**{text(first_sentence(base.__doc__).removesuffix('.'))}**\n\n{table(SETTING_HEADER, rows)}")
    return "\n\n".join(parts)


SETTING_HEADER = ("setting", "default", "meaning")


def setting_row(model: type[BaseModel], setting: Setting, prefix: str = "") -> tuple[str, str, str]:
    """A row of a table of settings. One that may change in a run that is resumed has a mark."""
    name = code(prefix + setting.name) + (" ↻" if may_change(model, setting.name) else "")
    allowed = "; ".join(filter(None, (_choices(setting), setting.bounds)))
    return name, code(json.dumps(setting.default)), text(setting.meaning) + (f" *({text(allowed)})*" if allowed else "")


def _choices(setting: Setting) -> str:
    """The words that a setting may be, if it is one of a few."""
    known = re.search(r"Literal\[([^]]+)\]", setting.annotation)
    words = json.loads(f"[{known[1]}]") if known else []
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else ""


def _introduced(model: type[StrictModel]) -> Iterator[tuple[type[StrictModel], list[str]]]:
    """The settings of a model by the class that introduces them, the most special class first."""
    known = {setting.name for setting in settings_of(model)}
    bases = [base for base in model.__mro__ if issubclass(base, StrictModel)]
    origin = {name: base for base in bases for name in base.model_fields}  # the last one wins: the most general
    for base in bases:
        names = [name for name in model.model_fields if origin[name] is base and name in known]
        if names:
            yield base, names


# ----------------------------------------------------------------------------------------------------------- configs


@functools.cache
def results() -> tuple[dict[str, Reference], dict[str, Outcomes]]:
    """What the configs are to reach, and what they have reached."""
    references = load_entries(BENCHMARKS / "learning.yaml", Reference)
    return references, of_entries(load_results(BENCHMARKS / "results" / "learning.json"), references)


def configs(name: str) -> str:
    """The packaged configs of an algorithm with their figures, curves and settings."""
    references, _ = results()
    parts = []
    for config, file in packaged_configs().items():
        if config.partition("/")[0] != name:
            continue
        yaml = file.read_text("utf-8")
        if "\nbase: " in yaml:
            yaml += f"\n# with the settings of its base:\n{yaml_text(load_config_data(config))}"
        parts += [f"### {config}", text(about(file)) + ".", _measured(config)]
        variants = [key for key, reference in references.items() if reference.config == config]
        parts += [f"**{text(key)}**, {text(references[key].source)}:\n\n{_measured(key)}" for key in variants]
        parts.append(fold(f"The settings of {config}", f"```yaml\n{yaml}```"))
    return "\n\n".join(parts)


def _measured(key: str) -> str:
    references, known = results()
    outcomes, reference = known.get(key), references.get(key)
    if not outcomes:
        return "It has not been measured here."
    runs = by_seed(outcomes)
    returns = [run["return"] for run in runs]
    seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
    rows = [
        ("env steps", f"{runs[0]['steps']:,}"),
        ("final return, median over seeds", f"**{number(median(returns))}**"),
        (f"by seed, {len(returns)} of them", ", ".join(map(number, returns))),
    ]
    if seconds:
        rows.append(("CPU seconds, median", f"{median(seconds):.0f}"))
    if reference is not None:
        verdict = f"**{text(verdict_of(key, references, known))}**"
        rows.append(("verdict", verdict) if reference.bar == "-" else ("to reach", f"{text(reference.bar)}: {verdict}"))
        if reference.config is None:  # a variant has its source in its heading
            rows.append(("published", text(reference.source)))
    return f"{table(('measured', ''), rows)}\n\n{_curves(key, outcomes)}"


def _curves(key: str, outcomes: Outcomes) -> str:
    """Evaluations during training, a line for each seed."""
    lines = [
        Line(f"seed {seed}", [step for step, _ in outcomes[seed]["curve"]], [result for _, result in outcomes[seed]["curve"]])
        for seed in sorted(outcomes, key=int)
        if len(outcomes[seed].get("curve", ())) > 1
    ]
    if not lines:
        return ""
    drawn = line_chart(f"Returns of {key} in evaluations during training, one line per seed", lines)
    caption = "Mean return of the evaluations during training, one line per seed. Point at the chart to read it off."
    read_off = '<output aria-live="polite"></output>'
    return html(f'<figure class="chart">{drawn}{read_off}<figcaption>{caption}</figcaption></figure>')


def number(value: float) -> str:
    """A return as people read it."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}"
