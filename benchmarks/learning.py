"""Does it learn? Trains packaged configs on several seeds and holds the final policies against published figures.

    python benchmarks/learning.py                       everything in learning.yaml, then the table in docs/benchmarks.md
    python benchmarks/learning.py dqn/cartpole --jobs 2
    python benchmarks/learning.py --report              only write the table from what has been run
    python benchmarks/learning.py --figure docs/pixels.png drq/pendulum_pixels drq/pendulum_pixels_unshifted
                                                        only draw the learning curves of what has been run

Runs go to runs/learning/<config>/seed<k>; one that is finished is not run again, one that was stopped is resumed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from document import write_section

from rl_training.experiment.config import apply_overrides, load_config_data, resolve_config
from rl_training.runtime.plot import plot_groups

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "learning"
RESULTS = Path(__file__).parent / "results" / "learning.json"


def main() -> int:
    references: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "learning.yaml").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", help=f"of {', '.join(references)}")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--report", action="store_true", help="run nothing, write the table")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="run nothing, draw the learning curves")
    arguments = parser.parse_args()
    chosen = arguments.configs or list(references)
    if arguments.figure:
        plot_groups({name: sorted((RUNS / name).glob("seed*")) for name in chosen}, arguments.figure)
        return 0
    if not arguments.report:
        jobs = [(config, seed, references[config]) for config in chosen for seed in range(references[config]["seeds"])]
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for config, seed, outcome in pool.map(lambda job: run(*job), jobs):
                print(f"{config} seed {seed}: {outcome['return']:.1f} in {outcome['seconds']:.0f} CPU seconds", flush=True)
                record(config, seed, outcome)
    write_report(references)
    return 0


def run(name: str, seed: int, reference: dict[str, Any]) -> tuple[str, int, dict[str, float]]:
    """Trains one seed, or goes on with it, in a process of its own."""
    path = RUNS / name / f"seed{seed}"
    config, overrides = reference.get("config", name), reference.get("set", [])
    if path.exists() and not _same_config(config, overrides, path):
        raise SystemExit(f"{path} was run with another version of {name}; move it away first")
    if not (path / "evaluation.json").exists():
        rl_training = [sys.executable, "-m", "rl_training"]
        if (path / "config.yaml").exists():
            command = [*rl_training, "resume", str(path), "--quiet"]
        else:
            command = [*rl_training, "train", "--config", config, "--seed", str(seed), "--output-dir", str(path), "--quiet"]
            command += [f"--set={override}" for override in overrides]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    evaluation = json.loads((path / "evaluation.json").read_text())
    log = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    outcome = {
        "return": evaluation["return_mean"],
        "steps": evaluation["step"],
        "seconds": max(line["time/cpu_seconds"] for line in log),
        "first": next((line["return_mean"] for line in log if line["kind"] == "eval"), evaluation["return_mean"]),
    }
    return name, seed, outcome


def _same_config(config: str, overrides: list[str], path: Path) -> bool:
    """Whether a run directory was made with the config as it is now."""
    now = resolve_config(apply_overrides(load_config_data(config), overrides)).describe()
    then = resolve_config(load_config_data(str(path / "config.yaml"))).describe()
    return {**now, "seed": None} == {**then, "seed": None}


def load_results() -> dict[str, dict[str, dict[str, float]]]:
    results: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return results


def record(config: str, seed: int, outcome: dict[str, float]) -> None:
    results = load_results()
    results.setdefault(config, {})[str(seed)] = outcome
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def bar(reference: dict[str, Any]) -> str:
    if "below" in reference:
        return f"median below {reference['below']}"
    if "threshold" not in reference:
        return ""
    rule = "median" if reference.get("median") else f"{reference['passing']} of {reference['seeds']}"
    begin = f" from below {reference['from']}" if "from" in reference else ""
    return f"{reference['threshold']}{begin} ({rule})"


def verdict(reference: dict[str, Any], outcomes: list[dict[str, float]]) -> str:
    returns = [outcome["return"] for outcome in outcomes]
    if len(returns) < reference["seeds"]:
        return f"incomplete: {len(returns)} of {reference['seeds']} seeds"
    if "below" in reference:  # a control, which must not succeed
        return "as expected" if statistics.median(returns) < reference["below"] else "UNEXPECTED"
    if "threshold" not in reference:
        return "for comparison"
    if reference.get("median"):
        return "pass" if statistics.median(returns) >= reference["threshold"] else "FALLS SHORT"
    passed = sum(
        outcome["return"] >= reference["threshold"] and ("from" not in reference or outcome["first"] < reference["from"])
        for outcome in outcomes
    )
    return f"{'pass' if passed >= reference['passing'] else 'FALLS SHORT'}: {passed} of {len(returns)}"


def write_report(references: dict[str, dict[str, Any]]) -> None:
    """Writes the table of docs/benchmarks.md."""
    results = load_results()
    lines = [
        "| config | steps | final return, by seed | median | bar | verdict | published | CPU seconds a seed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for config, reference in references.items():
        outcomes = [results.get(config, {})[key] for key in sorted(results.get(config, {}), key=int)]
        if not outcomes:
            lines.append(f"| {config} | | not run | | {bar(reference)} | | {reference['source']} | |")
            continue
        returns = [outcome["return"] for outcome in outcomes]
        lines.append(
            f"| {config} | {outcomes[0]['steps']} | {', '.join(f'{value:.0f}' for value in returns)} "
            f"| {statistics.median(returns):.1f} | {bar(reference)} | {verdict(reference, outcomes)} "
            f"| {reference['source']} | {statistics.median(outcome['seconds'] for outcome in outcomes):.0f} |"
        )
    write_section("learning", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
