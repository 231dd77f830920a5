"""Collectors on other clusters than an instance of our own: one that runs already, one that loses a node. And what is left of
Ray's processes when a run has ended, in whatever way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import yaml
from moments import PATIENCE, wait_for_checkpoint
from test_collectors import fingerprint, stretch_config, trained

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.runtime import ray_cluster, ray_collectors
from rl_training.runtime.ray_cluster import connected

pytest.importorskip("ray")
pytestmark = pytest.mark.slow  # each starts a Ray instance of its own
#: in the environment of all processes that a test starts, by which they are found again
MARK = "RL_TRAINING_TEST_MARK"
#: Seconds after the end of a run in which Ray's own processes may end.
LINGERING = 60.0


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    name = uuid.uuid4().hex
    monkeypatch.setenv(MARK, name)
    monkeypatch.setenv("RAY_worker_niceness", "0")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "300")  # on a busy machine
    return name


def marked(mark: str) -> list[str]:
    """The processes that were started with this mark, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            own = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            if own and int(folder.name) != os.getpid() and "\nState:\tZ" not in (folder / "status").read_text():
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()[:120]}")
        except (OSError, ValueError):
            continue  # it has ended
    return found


def assert_nothing_left(mark: str) -> None:
    deadline = time.monotonic() + LINGERING
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not marked(mark)


def end_all(mark: str) -> None:
    """Unlike ``ray stop``, it ends nobody else's processes."""
    for line in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a cluster of the user's. It is the one of this process, because Ray keeps the first token that it has read."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", ray_cluster._drawn_token())


def with_paths() -> dict[str, str]:
    """The environment of a process that can import what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def in_a_process(config: Any, folder: Path, output: str, **collectors: Any) -> subprocess.Popen[str]:
    """A run from the command line in a process group of its own."""
    data = config.model_dump(mode="json", exclude_unset=True)
    data["collectors"] |= collectors
    data.pop("output_dir")
    (folder / f"{output}.yaml").write_text(yaml.safe_dump(data))
    command = [sys.executable, "-m", "rl_training", "train", "--config", f"{output}.yaml", "--output-dir", output, "--quiet"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=with_paths(), start_new_session=True, **pipes)


def test_a_cluster_that_runs_already_is_used_and_left_running(tmp_path: Path, mark: str, token: None) -> None:
    inline, _ = trained(stretch_config("dqn", tmp_path / "inline"))
    start = ["start", "--head", "--port=0", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    try:
        ray = Path(sys.executable).parent / "ray"
        subprocess.run([ray, *start], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
        process = in_a_process(stretch_config("dqn", tmp_path / "x"), tmp_path, "run", kind="ray", address="auto")
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        assert fingerprint(tmp_path / "run") == inline
        assert any("raylet" in line for line in marked(mark)), "it has stopped a cluster that is not its own"
    finally:
        end_all(mark)


#: The node with more collectors is removed in mid-run; they go on on the other one.
REMOVED_NODE = """
import sys
from pathlib import Path
from ray._private.state import available_resources_per_node
from ray.cluster_utils import Cluster
from rl_training.runtime.ray_cluster import connected
from test_collectors import stretch_config, trained

class Removing:
    removed = False

    def on_update(self, metrics):
        if not self.removed:
            self.removed = True
            free = available_resources_per_node()
            cluster.remove_node(min(nodes, key=lambda node: free[node.node_id].get("CPU", 0.0)))

folder = Path(sys.argv[1])
inline, _ = trained(stretch_config("dqn", folder / "inline"))
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
try:
    nodes = [cluster.add_node(num_cpus=2) for _ in range(2)]
    with connected(cluster.address):
        found, restarts = trained(stretch_config("dqn", folder / "run", kind="ray"), callbacks=[Removing()])
finally:
    cluster.shutdown()
print(restarts >= 1, found == inline)
"""


def test_a_node_that_is_removed_leaves_no_trace(tmp_path: Path, mark: str, token: None) -> None:
    (tmp_path / "removed_node.py").write_text(REMOVED_NODE)
    command = [sys.executable, str(tmp_path / "removed_node.py"), str(tmp_path)]
    done = subprocess.run(command, env=with_paths(), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True True"
    assert_nothing_left(mark)


def test_a_node_with_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    with connected(None, num_cpus=2):
        monkeypatch.setattr(ray_collectors, "__version__", "9.9.9")  # here, but not on the nodes
        with pytest.raises(ConfigError, match=r"a node of the Ray cluster has rl-training .*, this machine 9\.9\.9"):
            trained(stretch_config("dqn", tmp_path / "run", kind="ray"))
    assert_nothing_left(mark)


@pytest.mark.parametrize("end", ["over", "SIGTERM", "SIGTERM to all", "SIGKILL"])
def test_no_process_stays_behind_and_a_killed_run_resumes_exactly(end: str, tmp_path: Path, mark: str) -> None:
    config = stretch_config("dqn", tmp_path / "x").with_values(total_timesteps=1280)
    process = in_a_process(config, tmp_path, "run", kind="ray")
    if end != "over":
        wait_for_checkpoint(tmp_path / "run", process)
        send = os.killpg if end.endswith("to all") else os.kill  # Ray's own processes are in the group of the trainer
        send(process.pid, getattr(signal, end.split()[0]))
    _, errors = process.communicate(timeout=PATIENCE)
    assert_nothing_left(mark)
    if end == "over":
        assert process.returncode == 0, errors
        return
    assert main(["resume", str(tmp_path / "run"), "--set", "collectors.kind=inline", "--quiet"]) == 0
    inline, _ = trained(config.with_values(output_dir=str(tmp_path / "inline")))
    assert fingerprint(tmp_path / "run")["files"] == inline["files"]
