"""One run of the bench: what it is, where it is stored, and what remains of it when it has finished.

<runs>/<config>/seed<k>            a run directory like any other
<runs>/<config>/<package>-seed<k>  the peer's run: metrics.jsonl and evaluation.json in the same form
<runs>/<config>/race-...           a run of either kind that ends when the task is solved: race.json
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from rl_training.bench.machine import commit, machine, session, today, versions
from rl_training.bench.references import Peer, Reference
from rl_training.envs.wrappers import spelled_out
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config_data, resolve_config
from rl_training.experiment.files import replace_text
from rl_training.experiment.layout import CONFIG_FILE, EVALUATION_FILE, METADATA_FILE
from rl_training.experiment.metrics import METRICS_FILE, read_metrics
from rl_training.experiment.run import is_run

JOB_FILE, RACE_FILE = "job.json", "race.json"
MACHINE_FILE, COMMIT_FILE, SESSION_FILE = "machine.json", "commit.json", "session.json"
#: What remains of a finished job for the tables and curves; the results are last.
RESULT_FILES = (
    CONFIG_FILE,
    METADATA_FILE,
    JOB_FILE,
    MACHINE_FILE,
    COMMIT_FILE,
    SESSION_FILE,
    METRICS_FILE,
    EVALUATION_FILE,
    RACE_FILE,
)
#: The parts of our config that also apply to a peer: the task and the evaluation protocol, not our hyperparameters.
RACE_TASK_KEYS = ("env_id", "env_kwargs", "wrappers")
TASK_KEYS = (*RACE_TASK_KEYS, "total_timesteps", "eval")
#: A wrapper that is a choice of our settings, not part of the task. A peer does without it.
NOT_FOR_PEERS = "scale_observation"


def config_digest(data: dict[str, Any]) -> str:
    """A short hash of a config file's contents. A new setting that the file does not mention leaves it unchanged."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _as_peers_play_it(data: dict[str, Any]) -> dict[str, Any]:
    """The values of a config without the wrapper that is not for peers."""
    wrappers = data.get("wrappers")
    if not isinstance(wrappers, list):
        return data
    kept = [one for one in wrappers if not (isinstance(one, dict) and spelled_out(one).get("name") == NOT_FOR_PEERS)]
    rest = {key: value for key, value in data.items() if key != "wrappers"}
    return {**rest, "wrappers": kept} if kept else rest


@dataclass(frozen=True, eq=False)
class Job:
    """A config and a seed. With a ``peer``, the peer's run on the same task; a ``race`` ends when the task is solved."""

    config: str
    seed: int
    runs: Path
    peer: Peer | None = None
    race: float | None = None  # the return that ends the race
    reference: Reference | None = None  # may name another config, with overrides
    content: dict[str, Any] | None = None  # the config itself, for a machine without its file

    @property
    def path(self) -> Path:
        name = f"seed{self.seed}" if self.peer is None else f"{self.peer.package}-seed{self.seed}"
        folder = self.config.removesuffix(".yaml").removesuffix(".yml").lstrip("./")
        return self.runs / folder / (name if self.race is None else f"race-{name}")

    @property
    def label(self) -> str:
        return f"{self.config}{'' if self.peer is None else f' ({self.peer.package})'} seed {self.seed}"

    @property
    def result_file(self) -> Path:
        return self.path / (EVALUATION_FILE if self.race is None else RACE_FILE)

    @property
    def data(self) -> dict[str, Any]:
        if self.content is not None:
            return self.content
        data = load_config_data(self.config) if self.reference is None else self.reference.data(self.config)
        return data if self.peer is None else _as_peers_play_it(data)

    def load_config(self) -> TrainConfig:
        protocol = {**(self.data.get("eval") or {}), "budget": None}  # every evaluation counts, whatever it costs
        return resolve_config({**self.data, "eval": protocol, "seed": self.seed, "output_dir": str(self.path)})

    @property
    def command(self) -> str:
        """The command that makes a run like that of one of ours."""
        entry = self.reference
        name = self.config if entry is None or entry.config is None else entry.config
        changed = [] if entry is None else [word for change in entry.set for word in ("--set", change)]
        return shlex.join(["rl-training", "train", "--config", name, "--seed", str(self.seed), *changed])

    @property
    def total_steps(self) -> int:
        return self.peer.steps if self.peer is not None and self.race is not None else self.load_config().total_timesteps

    @property
    def threads(self) -> int:
        """The CPU threads that it uses."""
        return self.load_config().threads if self.peer is None else 1

    def logged_steps(self) -> int:
        """The number of steps that the log shows so far."""
        if self.race is not None or not (self.path / METRICS_FILE).exists():
            return 0
        return max((record["step"] for kind in ("train", "eval") for record in read_metrics(self.path, kind)), default=0)

    def description(self) -> dict[str, Any]:
        """Everything that determines the outcome, apart from the seed and the versions."""
        ours = {key: value for key, value in self.load_config().describe().items() if key != "seed"}
        return self._what_decides(ours, exclude_defaults=False)

    @property
    def digest(self) -> str:
        """A short hash of the same, computed from the files as written."""
        data, protocol = self.data, self.data.get("eval") or {}
        if "budget" in protocol:  # it never applies here
            data = {**data, "eval": {key: value for key, value in protocol.items() if key != "budget"}}
        return config_digest(self._what_decides(data, exclude_defaults=True))

    def _what_decides(self, ours: dict[str, Any], *, exclude_defaults: bool) -> dict[str, Any]:
        race = {} if self.race is None else {"race": self.race}
        if self.peer is None:
            return {**ours, **race}
        keys = TASK_KEYS if self.race is None else RACE_TASK_KEYS
        judged = {"scale", "times", "source", "first_race_seed"}
        peer = self.peer.model_dump(mode="json", exclude=judged, exclude_defaults=exclude_defaults)
        return {**{key: ours[key] for key in keys if key in ours}, **race, "peer": peer}

    def is_current(self) -> bool:
        """Whether the existing run was made with the current settings."""
        now = self.description()
        if self.peer is not None or self.race is not None:
            return bool(json.loads((self.path / JOB_FILE).read_text("utf-8")) == now)
        try:
            then = resolve_config(load_config_data(str(self.path / CONFIG_FILE))).describe()
        except ConfigError:  # written by a version with other settings
            return False
        return {**then, "seed": None} == {**now, "seed": None}

    def _is_scored_on_our_episodes(self) -> bool:
        """Older versions scored a peer on others."""
        if self.peer is None or self.race is not None or not self.result_file.exists():
            return True
        return bool(json.loads(self.result_file.read_text("utf-8")).get("same_episodes", False))

    def is_begun(self) -> bool:
        return is_run(self.path) or (self.path / JOB_FILE).exists()

    def is_finished(self) -> bool:
        """Whether there is a result. Raises if the run was made with other settings."""
        if self.is_begun() and not self.is_current():
            raise ConfigError(f"{self.path} was run with another version of {self.config}; move or delete it first")
        if not self._is_scored_on_our_episodes():
            raise ConfigError(
                f"{self.path} was not scored on the episodes of our runs, by an older version; move or delete it"
            )
        return self.result_file.exists()

    def write_description(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / JOB_FILE).write_text(json.dumps(self.description()) + "\n", "utf-8")

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes the result atomically: the file is either complete or absent."""
        temporary = self.result_file.with_suffix(".part")
        packages = () if self.peer is None else (self.peer.package,)
        made = {"date": today(), "versions": versions(packages), "machine": machine()}
        temporary.write_text(json.dumps({**result, **made}) + "\n", "utf-8")
        temporary.replace(self.result_file)

    def outcome(self) -> dict[str, Any]:
        """The outcome of a finished job, for the tables and curves."""
        result: dict[str, Any] = json.loads(self.result_file.read_text("utf-8"))
        begun = {"commit": self._noted(COMMIT_FILE), "session": self._noted(SESSION_FILE)}
        if self.race is not None:
            return {**result, **begun, "config": self.digest}
        curve = read_metrics(self.path, "eval")
        timed = [*curve, *read_metrics(self.path, "train")]
        return {
            "return": result["return_mean"],
            "steps": result["step"],
            "seconds": max(record["time/cpu_seconds"] for record in timed) if timed else None,
            "curve": [[record["step"], round(record["return_mean"], 2)] for record in curve],
            "config": self.digest,
            "date": date.fromtimestamp(self.result_file.stat().st_mtime).isoformat(),
            "machine": self._noted(MACHINE_FILE),
            **begun,
            **self._versions(),
            **{key: result[key] for key in ("date", "versions", "machine", "same_episodes") if key in result},
        }

    def _versions(self) -> dict[str, dict[str, str]]:
        """The versions that one of our runs was made with; a peer's are in its result."""
        if self.peer is not None:
            return {}
        metadata = json.loads((self.path / METADATA_FILE).read_text("utf-8"))
        return {"versions": {"python": metadata["python"], **metadata["versions"]}}

    def note_beginning(self) -> None:
        """Records the machine and the commit of a run that begins or goes on."""
        for file, value in ((MACHINE_FILE, machine()), (COMMIT_FILE, commit()), (SESSION_FILE, session())):
            (self.path / file).write_text(json.dumps(value) + "\n", "utf-8")

    def _noted(self, file: str) -> Any:
        """What ``note_beginning`` has recorded; None for a run of an older version, which did not record it."""
        path = self.path / file
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def result_files(self) -> dict[str, str]:
        """The contents of those files of a finished job that ``outcome`` needs."""
        paths = [self.path / name for name in RESULT_FILES]
        return {path.name: path.read_text("utf-8") for path in paths if path.exists()}

    def take_results(self, files: Mapping[str, str]) -> None:
        """Writes what ``result_files`` has returned on another machine, the result itself last."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in RESULT_FILES:
            if name in files:
                replace_text(self.path / name, files[name])

    def elsewhere(self) -> Job:
        """The same job for another machine: it contains its config, and its path does not depend on a current directory."""
        return replace(self, runs=self.runs.absolute(), content=self.data)

    def to_json(self) -> str:
        models = {"peer": self.peer, "reference": self.reference}
        dumped = {name: None if model is None else model.model_dump(mode="json") for name, model in models.items()}
        return json.dumps({**vars(self), "runs": str(self.runs), **dumped})

    @classmethod
    def from_json(cls, text: str) -> Job:
        values = json.loads(text)
        peer = None if values["peer"] is None else Peer.model_validate(values["peer"])
        reference = None if values["reference"] is None else Reference.model_validate(values["reference"])
        return cls(**{**values, "runs": Path(values["runs"]), "peer": peer, "reference": reference})
