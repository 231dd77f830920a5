"""Writes what ``rl-training list`` says a packaged config reaches: medians over seeds from benchmarks/results/learning.json.

python benchmarks/expected.py
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from rl_training.bench.jobs import Job
from rl_training.bench.references import Reference, load_entries
from rl_training.bench.report import of_entries
from rl_training.bench.store import load_results
from rl_training.experiment.packaged import EXPECTED, packaged_configs

HERE = Path(__file__).parent


def expected() -> dict[str, dict[str, float]]:
    """The median return and the median seconds of each packaged config that has been measured as it is now."""
    references = load_entries(HERE / "learning.yaml", Reference)
    results = of_entries(load_results(HERE / "results" / "learning.json"), references)
    found = {}
    for name in packaged_configs():
        current = Job(name, 0, Path()).digest
        seeds = [seed for seed in results.get(name, {}).values() if seed.get("config", current) == current]
        if seeds:
            value = {"return": median(seed["return"] for seed in seeds), "seconds": median(seed["seconds"] for seed in seeds)}
            found[name] = {"return": round(value["return"], 2), "seconds": round(value["seconds"]), "seeds": len(seeds)}
    return found


if __name__ == "__main__":
    EXPECTED.write_text(json.dumps(expected(), indent=1) + "\n", "utf-8")
