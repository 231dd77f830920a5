"""What a config must reach and which peer it is compared with: the two YAML files of the learning benchmark.

The references file gives, for each config, the number of seeds, what their final policies must reach, and the source of that
figure. The peers file gives, for each config, the settings of Stable-Baselines3 or sb3-contrib for the same task.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from pydantic import Field, ValidationError, model_validator

from rl_training.algorithms.config import Count, Number, Positive, PositiveNumber
from rl_training.algorithms.strict_model import StrictModel
from rl_training.errors import ConfigError
from rl_training.experiment.aggregate import (
    FEWEST_FOR_AN_INTERVAL,
    interquartile_mean,
    matrix,
    point_interquartile_mean,
)
from rl_training.experiment.config import apply_overrides, load_config_data, parse_yaml

Entry = TypeVar("Entry", bound=StrictModel)
#: The number of seeds for a comparison with a peer, and for a config without a reference.
DEFAULT_SEEDS = 5
#: The seeds of a race are its own: those of the references have been used for verdicts.
RACE_SEEDS, FIRST_RACE_SEED = 10, 8_000


class Reference(StrictModel):
    """A seed passes if the mean return of its final policy is at least ``threshold``."""

    seeds: Positive = Field(description="number of runs that the verdict needs")
    first_seed: Count = Field(0, description="the first of these seeds; not one that the settings were tuned on")
    threshold: Number | None = Field(None, description="return to reach")
    passing: Positive | None = Field(None, description="how many of the seeds must reach it ...")
    median: bool = Field(False, description="... or: their median must reach it ...")
    iqm: bool = Field(False, description="... or: their interquartile mean must reach it")
    none_below: Number | None = Field(None, description="with iqm: and none of them may end below this")
    below: Number | None = Field(None, description="for a control: the median must stay below this")
    above: str | None = Field(
        None, description="the entry of a control: the interval of the IQM must lie wholly above its interval"
    )
    begins_below: Number | None = Field(None, description="a seed passes only if its first evaluation was below this")
    config: str | None = Field(None, description="the config to run, if it differs from the entry's name ...")
    set: tuple[str, ...] = Field((), description="... and overrides for it: KEY=VALUE")
    published: Number | None = Field(None, description="the figure given by the source")
    source: str = Field(description="the published figure, and who published it")
    curves: tuple[tuple[tuple[Count, Number], ...], ...] = Field(
        (), description="published learning curves to draw beside ours: for each seed, pairs of env steps and return"
    )
    overview: bool = Field(False, description="whether the table and the curves at the top of the page have it")

    @model_validator(mode="after")
    def _one_rule(self) -> Reference:
        rules = (self.below is not None, self.above is not None, self.passing is not None, self.median, self.iqm)
        bars = (self.below is not None, self.above is not None, self.threshold is not None)
        if sum(bars) != sum(rules) or sum(rules) > 1:
            raise ValueError(
                "give either threshold with passing, threshold with median: true or iqm: true, below alone, above alone, or "
                "none of these"
            )
        if self.above is not None and self.seeds < FEWEST_FOR_AN_INTERVAL:
            raise ValueError(f"above compares intervals, which need at least {FEWEST_FOR_AN_INTERVAL} seeds")
        if self.none_below is not None and not self.iqm:
            raise ValueError("none_below goes with iqm: true; with passing: all seeds, the threshold says it")
        if self.begins_below is not None and self.passing is None:
            raise ValueError("begins_below applies to passing seeds: give it together with passing")
        if self.passing is not None and self.passing > self.seeds:
            raise ValueError(f"passing ({self.passing}) is more than seeds ({self.seeds})")
        if any(len(curve) < 2 for curve in self.curves):
            raise ValueError("each of the curves needs at least two points")
        return self

    @property
    def bar(self) -> str:
        """The rule in short form."""
        if self.below is not None:
            return f"median below {self.below:g}"
        if self.above is not None:
            return f"interval above {self.above}'s"
        if self.threshold is None:
            return "-"
        begin = "" if self.begins_below is None else f" from below {self.begins_below:g}"
        rule = "median" if self.median else "IQM" if self.iqm else f"{self.passing} of {self.seeds}"
        worst = "" if self.none_below is None else f", none below {self.none_below:g}"
        return f"{self.threshold:g}{begin} ({rule}{worst})"

    def data(self, name: str) -> dict[str, Any]:
        """The config data of the entry with this name."""
        return apply_overrides(load_config_data(self.config or name), self.set)

    def verdict(self, returns: Sequence[float], first: Sequence[float | None] = (), control: Sequence[float] = ()) -> str:
        """Whether the entry passes, judged by the final returns and, if ``begins_below`` is set, by the first ones; or,
        if ``above`` names a control, by the final returns of all its seeds.

        With more seeds than required, the same proportion must pass; with fewer, there is no verdict. A median below the
        published figure is noted.
        """
        if len(returns) < self.seeds:
            return f"incomplete: {len(returns)} of {self.seeds} seeds"
        below = 0.0 if self.published is None else self.published - median(returns)
        return f"{self._rule(returns, first, control)}{f', {below:.1f} below published' if below >= 0.05 else ''}"

    def _rule(self, returns: Sequence[float], first: Sequence[float | None], control: Sequence[float]) -> str:
        if self.below is not None:
            return "as expected" if median(returns) < self.below else "UNEXPECTED"
        if self.above is not None:
            if not control:
                return f"incomplete: seeds of {self.above} are missing"
            ours, theirs = (interquartile_mean(matrix([values])) for values in (returns, control))
            return "pass" if ours.low > theirs.high else "FALLS SHORT"
        if self.threshold is None:
            return "for comparison"
        if self.passing is None:
            middle = point_interquartile_mean(returns) if self.iqm else median(returns)
            enough = middle >= self.threshold and (self.none_below is None or min(returns) >= self.none_below)
            return "pass" if enough else "FALLS SHORT"
        begun = [self._begins_low(value) for value in first or [None] * len(returns)]
        passed = sum(value >= self.threshold and low for value, low in zip(returns, begun, strict=True))
        enough = passed * self.seeds >= self.passing * len(returns)
        return f"{'pass' if enough else 'FALLS SHORT'}: {passed} of {len(returns)}"

    def _begins_low(self, first: float | None) -> bool:
        return self.begins_below is None or (first is not None and first < self.begins_below)


class Peer(StrictModel):
    """Another library's algorithm on the task of a config, with settings that its own community has published."""

    package: str = Field(description="distribution to install")
    algorithm: str = Field(description="module:class")
    steps: Positive = Field(description="env steps that the settings are meant for")
    num_envs: Positive = Field(1, description="number of parallel environments")
    normalize: bool = Field(False, description="running normalisation of observations and rewards")
    settings: dict[str, Any] = Field(description="arguments; 'lin_x' falls linearly from x to 0")
    policy_kwargs: dict[str, Any] = Field(default_factory=dict, description="network arguments; 'nn.x' means torch.nn.x")
    scale: tuple[Number, Number] = Field(description="returns that count as 0 (random policy) and 1 (the reference)")
    solved: Number | None = Field(None, description="return that ends the time-to-solve race; null disables the race")
    first_race_seed: Count = Field(FIRST_RACE_SEED, description="the first seed of the race; not one seen in an earlier race")
    times: PositiveNumber | None = Field(None, description="speed-up over the peer that we aim for in that race")
    source: str = Field(description="where the settings are published")


def load_entries(path: Path, entry_class: type[Entry]) -> dict[str, Entry]:
    """The entries of a references or peers file, by config, all of them validated."""
    try:
        data = parse_yaml(path.read_text("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping from configs to entries")
    entries = {}
    for config, values in data.items():
        try:
            entries[str(config)] = entry_class.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in ("", *first["loc"]))
            raise ConfigError(f"{path}: {config}{key}: {first['msg'].removeprefix('Value error, ')}") from error
    return entries
