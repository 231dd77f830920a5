"""A user's own network in every algorithm: it trains, resumes exactly, is exported, and every mistake is one sentence."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_networks
import pytest
import torch
import yaml
from conftest import ALGORITHMS, EXPORTED, env_of_tests, family, final_fingerprint, settings_of, tiny_config, tiny_values
from moments import kill, start, wait_for_checkpoint, waiting_at
from spaces_matrix import MATRIX, Case
from test_compiled import COMPILED, assert_same_learning, backend
from torch import nn

from rl_training import DQN, PPO, SAC, load_agent, managed
from rl_training.algorithms.base import init_generator
from rl_training.algorithms.value import QLearning
from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.plain_data import parse_yaml
from rl_training.experiment.registry import get_algorithm
from rl_training.models.custom import CustomTrunk
from rl_training.runtime.export import export_policy, load_exported
from rl_training.runtime.sessions import resume_training, start_training
from rl_training.runtime.trainer import Trainer
from rl_training.types import ActionSpec, ObservationSpec, SpaceSpec

__all__ = ["backend"]  # a fixture

TRUNK = {"network": "own_networks:make_trunk", "network_kwargs": {"width": 6}}
#: those with an actor and a critic that need not share an encoder; DrQ-v2's always share one
ACTOR_CRITICS = [name for name in ALGORITHMS if name not in (*family(QLearning), "drqv2")]
TINY: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_size": 150,
    "learning_starts": 20,
    "total_timesteps": 60,
}


def no_warning(message: str) -> None:
    raise AssertionError(f"unexpected: {message}")


def train(config: TrainConfig, stop_at: int | None = None) -> Trainer:
    trainer = start_training(config, command="test")
    trainer.train(stop_at)
    trainer.close()
    return trainer


def trunks(trainer: Trainer) -> list[CustomTrunk]:
    return [module for module in trainer.policy.network.modules() if isinstance(module, CustomTrunk)]


@pytest.mark.parametrize("exported", EXPORTED)
def test_it_learns_resumes_exactly_and_is_exported(algo: str, exported: str, tmp_path: Path) -> None:
    options = settings_of(algo, {"dueling": True, "noisy": True, "n_step": 2, "normalize_observations": True})
    values: dict[str, Any] = {"num_envs": 2, "total_timesteps": 160, "algo_kwargs": {**TRUNK, **options}}
    before = torch.random.get_rng_state()
    whole = train(tiny_config(algo, **values, output_dir=str(tmp_path / "whole")))
    assert torch.equal(torch.random.get_rng_state(), before)
    parts = trunks(whole)
    assert parts
    assert all(part.out_features == 6 for part in parts)
    fresh = Trainer(tiny_config(algo, **values))
    fresh.close()
    for part, initial in zip(parts, trunks(fresh), strict=True):  # every part learns
        assert all(not torch.equal(a, b) for a, b in zip(part.parameters(), initial.parameters(), strict=True))
    train(tiny_config(algo, **values, output_dir=str(tmp_path / "parted")), stop_at=90)
    resumed = resume_training(tmp_path / "parted", warn=no_warning)
    resumed.train()
    resumed.close()
    assert final_fingerprint(tmp_path / "parted") == final_fingerprint(tmp_path / "whole")
    assert export_policy(whole.policy, whole.config, tmp_path / f"policy.{exported}") < 1e-4
    saved = whole.config.describe()["algo_kwargs"]
    assert (saved["network"], saved["network_kwargs"]) == ("own_networks:make_trunk", {"width": 6})


MIXED = [case for case in MATRIX if case.observation == "dict"]


@pytest.mark.parametrize("case", MIXED, ids="-".join)
def test_it_gets_the_entries_of_a_dict_with_images(case: Case, tmp_path: Path) -> None:
    own = {"network": "own_networks:make_entries"}
    trainer = train(resolve_config(case.values(total_timesteps=100, compile="off", algo_kwargs=own)))
    fresh = Trainer(trainer.config)
    fresh.close()
    parts = trunks(trainer)
    assert parts
    for part, initial in zip(parts, trunks(fresh), strict=True):
        assert all(not torch.equal(a, b) for a, b in zip(part.parameters(), initial.parameters(), strict=True))
    for suffix in ("onnx", "safetensors"):
        assert export_policy(trainer.policy, trainer.config, tmp_path / f"policy.{suffix}") < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_run_ends_where_it_would_have_ended(algo: str, tmp_path: Path) -> None:
    values = tiny_values(algo, **env_of_tests(algo, "Waiting"), total_timesteps=300, algo_kwargs=TRUNK)
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({**values, "checkpoint": {"interval": 50}}))
    train_it = ["train", "--config", str(config), "--output-dir"]
    assert main([*train_it, str(tmp_path / "whole"), "--quiet"]) == 0
    process = start(*train_it, str(tmp_path / "killed"), env=waiting_at(200))
    wait_for_checkpoint(tmp_path / "killed", process)
    kill(process)
    assert main(["resume", str(tmp_path / "killed"), "--quiet"]) == 0
    assert final_fingerprint(tmp_path / "killed") == final_fingerprint(tmp_path / "whole")


@pytest.mark.parametrize("algo", COMPILED)
def test_it_is_compiled(algo: str, backend: str) -> None:
    options = settings_of(algo, {"normalize_observations": True, "normalize_rewards": True})
    trained = []
    for mode in ("on", "off"):
        trainer = Trainer(tiny_config(algo, compile=mode, algo_kwargs={**TRUNK, **options}))
        trainer.train(60)
        trainer.close()
        assert trainer.compilation.in_force == (mode == "on")
        trained.append(trainer)
    assert_same_learning(*trained)


def test_one_that_cannot_be_a_graph_is_left_eager() -> None:
    settings = {"network": "own_networks:Branching"}
    with pytest.raises(ConfigError, match="cannot be compiled here \\(the network own_networks:Branching raised"):
        Trainer(tiny_config("dqn", compile="on", algo_kwargs=settings)).train(60)
    trainer = Trainer(tiny_config("dqn", algo_kwargs=settings))
    trainer.train(60)
    trainer.close()
    assert trainer.learner.updates == 10


@pytest.mark.parametrize("exported", EXPORTED)
@pytest.mark.parametrize("algo", ACTOR_CRITICS)
def test_a_pair_is_an_actor_and_a_critic(algo: str, exported: str, tmp_path: Path) -> None:
    settings = {"network": own_networks.make_pair, "network_kwargs": {"actor": 5, "critic": 7}}
    options = settings_of(algo, {"normalize_observations": True})
    trainer = train(tiny_config(algo, algo_kwargs={**settings, **options}, output_dir=str(tmp_path / "run")))
    assert sorted(trunk.out_features for trunk in trunks(trainer)) == [5, 7]
    network: Any = trainer.policy.network
    actor = network.actor.encoder if hasattr(network.actor, "encoder") else network.encoder
    inner = [module for module in actor.modules() if isinstance(module, CustomTrunk)]
    assert [trunk.out_features for trunk in inner] == [5]
    export_policy(trainer.policy, trainer.config, tmp_path / f"policy.{exported}")
    resumed = resume_training(tmp_path / "run", warn=no_warning, total_timesteps=260)
    resumed.train()
    resumed.close()


def test_a_pair_where_there_is_one_network_is_refused() -> None:
    for algo, options in (("dqn", {}), ("recurrent_ppo", {"shared_lstm": True})):
        with pytest.raises(ConfigError, match="a pair of modules"):
            Trainer(tiny_config(algo, algo_kwargs={"network": own_networks.make_pair, **options}))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_its_weights_come_from_the_seed_alone(algo: str) -> None:
    """The same in every process and whatever was drawn before; another seed, other weights; a separate draw for each part."""
    found = []
    for seed, drawn in ((1, 0), (1, 100), (2, 0)):
        torch.manual_seed(drawn)
        torch.rand(drawn)
        trainer = Trainer(tiny_config(algo, seed=seed, algo_kwargs={"network": "own_networks:make_lazy"}))
        trainer.close()
        found.append([trunk.state_dict() for trunk in trunks(trainer)])
    for one, same, other in zip(*found, strict=True):
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert any(not torch.equal(one[name], other[name]) for name in one)
    if len(found[0]) > 1:
        assert any(not torch.equal(found[0][0][name], found[0][1][name]) for name in found[0][0])


def test_the_users_initialisation_is_kept() -> None:
    """Ours, such as the orthogonal one of DrQ and PPO, is for our layers."""

    def make(spec: ObservationSpec) -> nn.Module:
        trunk = own_networks.ResidualTrunk(spec)
        nn.init.constant_(trunk.first.weight, 0.25)
        return trunk

    for algo in ALGORITHMS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = Trainer(tiny_config(algo, algo_kwargs={"network": make, "init": "orthogonal"}))
        trainer.close()
        for trunk in trunks(trainer):
            first: Any = trunk.module.first
            assert (first.weight == 0.25).all()


MISTAKES = {
    "own_networks:make_dropout": "draws random numbers in its forward pass, as dropout does",
    "own_networks:make_batch_norm": "changes its buffers in its forward pass, as batch normalisation does",
    "own_networks:make_wrong_width": "declares out_features as 9, but returns 8",
    "own_networks:make_wrong_shape": "must map 2 observations to floating-point features (2, out_features), not to",
    "own_networks:make_double": "raised RuntimeError",
    "own_networks:make_text": "must return a torch.nn.Module, or a pair of them for actor and critic, not 'a network'",
    "own_networks:make_fault": "raised ValueError: there is no such layer",
    "own_networks:make_trunc": "has no 'make_trunc'; did you mean 'make_trunk'?",
    "own_networks:not_a_function": "is not a function",
    "nowhere_at_all:make": "cannot import the module 'nowhere_at_all'",
    "make_trunk": "give module:function, as in my_package.nets:make_trunk",
    "3": "give module:function",
}


@pytest.mark.parametrize("network", MISTAKES)
def test_a_mistake_is_one_sentence(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_values("dqn", algo_kwargs={"network": parse_yaml(network, "test")})))
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "run"), "--quiet"]) == 2
    error = capsys.readouterr().err
    assert MISTAKES[network] in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_only_what_a_module_may_mean_by_its_names_is_proposed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few_networks.py"
    path.write_text("import torch\n\nWIDTH = 3\n\ndef make_one(spec):\n    return torch.nn.Linear(4, WIDTH)\n")
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(tiny_values("dqn", algo_kwargs={"network": f"{path}:zzz"})))
    assert main(["train", "--config", str(config), "--output-dir", str(tmp_path / "run"), "--quiet"]) == 2
    assert "has no 'zzz'; choose one of: make_one\n" in capsys.readouterr().err


def test_arguments_that_it_does_not_take_are_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'widht'.*network_kwargs {'widht': 3}"):
        Trainer(tiny_config("dqn", algo_kwargs={"network": "own_networks:make_trunk", "network_kwargs": {"widht": 3}}))
    with pytest.raises(ConfigError, match="network_kwargs are the arguments of network"):
        tiny_config("dqn", algo_kwargs={"network_kwargs": {"width": 3}})


def test_a_function_of_a_module_is_recorded_by_its_name() -> None:
    for function in (own_networks.make_trunk, own_networks.ResidualTrunk):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            agent = DQN("CartPole-v1", network=function)
        assert agent.config.describe()["algo_kwargs"]["network"] == f"own_networks:{function.__name__}"


#: functions that no other process can import
LOCAL: dict[str, Callable[..., nn.Module]] = {
    "<lambda>": lambda spec: own_networks.make_trunk(spec),
    "partial": functools.partial(own_networks.make_trunk, width=5),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("exported", EXPORTED)
@pytest.mark.parametrize("name", LOCAL)
def test_a_function_from_python_works_until_it_is_needed_elsewhere(
    name: str, exported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one warning, when the agent is created: any other one would fail this test."""
    network, run = LOCAL[name], tmp_path / "run"
    with pytest.warns(UserWarning, match="load and resume need network= again, and the command line cannot use") as warned:
        agent = DQN("CartPole-v1", network=network, output_dir=str(run), eval={"final_episodes": 1}, **TINY)
    assert [one.filename for one in warned] == [__file__], "at the user's line"
    agent.learn()
    for suffix in {exported, "safetensors"}:
        agent.export(tmp_path / f"policy.{suffix}")
    obs = np.zeros(4, np.float32)
    expected = agent.predict(obs)[0]
    agent.close()
    assert f"network: python:{name}\n" in (run / "config.yaml").read_text().replace("'", "")
    refused = f"the network '{name}' of this agent was passed from Python, so no file can hold it: pass it again"
    for load in (DQN.load, DQN.resume, load_agent):
        with pytest.raises(ConfigError, match=refused):
            load(run)
    with pytest.raises(ConfigError, match=refused):
        load_exported(tmp_path / "policy.safetensors")
    for command in (["eval", str(run)], ["resume", str(run)], ["export", str(run)]):
        assert main(command) == 2
        assert refused in capsys.readouterr().err
    assert DQN.load(run, network=network).predict(obs)[0] == expected
    assert load_agent(run, network=network).evaluate(1).returns
    load_exported(tmp_path / "policy.safetensors", network=network)
    with DQN.resume(run, network=network) as resumed:
        resumed.learn(80)


def test_a_run_with_it_is_resumed_exactly_from_python(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**TINY, "total_timesteps": 100, "network": LOCAL["partial"], "eval": {"final_episodes": 1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with DQN("CartPole-v1", output_dir=str(tmp_path / "whole"), **settings) as whole:
            whole.learn(100)
        trainer = start_training(whole.config.with_values(output_dir=str(tmp_path / "parted")), command="test")
        trainer.train(70)
        trainer.close()
        with DQN.resume(tmp_path / "parted", network=settings["network"]) as resumed:
            resumed.learn(100)
    assert final_fingerprint(tmp_path / "parted") == final_fingerprint(tmp_path / "whole")


def test_images_arrive_as_numbers_from_0_to_1_and_mixtures_by_name() -> None:
    seen: list[Any] = []

    class Spy(nn.Module):
        out_features = 2

        def forward(self, x: Any) -> torch.Tensor:
            seen.append(x)
            rows = len(next(iter(x.values())) if isinstance(x, dict) else x)
            return torch.zeros(rows, 2)

    from rl_training.models import EncoderConfig, make_encoder
    from rl_training.models.custom import CustomNetwork, PythonNetwork
    from rl_training.types import ObservationLeaf

    custom = CustomNetwork(PythonNetwork("spy", lambda spec: Spy()))
    image = ObservationSpec.image(3, 4, 5)
    encoder = make_encoder(image, EncoderConfig(custom=custom), init_generator(0))
    encoder(torch.full((7, 3, 4, 5), 51, dtype=torch.uint8))
    assert seen[-1].shape == (7, 3, 4, 5)
    assert (seen[-1] == 0.2).all()
    leaves = (
        ObservationLeaf("image", (3, 4, 5), (3, 4, 5), path=("camera",)),
        ObservationLeaf("vector", (2,), (2,), path=("arm", 0)),
    )
    mixed = ObservationSpec(leaves)
    raw = {"camera": np.full((7, 3, 4, 5), 255, np.uint8), "arm": [np.full((7, 2), 0.5, np.float32)]}
    make_encoder(mixed, EncoderConfig(custom=custom), init_generator(0))(torch.from_numpy(mixed.encode(raw)))
    assert seen[-1].keys() == {"camera", "arm.0"}
    assert (seen[-1]["camera"] == 1.0).all()
    assert (seen[-1]["arm.0"] == 0.5).all()


def test_the_module_of_a_network_is_trusted_like_that_of_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run directory that names a module of its own, or one of the current directory, does not get it imported."""
    run = tmp_path / "run"
    train(tiny_config("dqn", total_timesteps=60, algo_kwargs=TRUNK, output_dir=str(run)))
    evil = "from pathlib import Path\nPath(__file__).with_name('executed').touch()\n"
    for folder in (run, tmp_path):
        (folder / "evil_nets.py").write_text(evil)
    from forgery import replace_in_all

    from rl_training.experiment.run import step_directories

    agent = json.loads((step_directories(run)[0] / "agent.json").read_text())
    agent["config"]["algo_kwargs"]["network"] = "evil_nets:make"
    replace_in_all(run, "agent.json", json.dumps(agent))
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("own_networks:make_trunk", "evil_nets:make"))
    for place in (run, tmp_path):
        monkeypatch.chdir(place)
        monkeypatch.syspath_prepend("")
        commands = (["eval", "."], ["predict", ".", "--obs", "[0,0,0,0]"], ["export", "."], ["resume", ".", "--quiet"])
        for command in commands if place == run else (["eval", "run"],):
            assert main(command) == 2
            error = capsys.readouterr().err
            assert "names the module 'evil_nets' (algo_kwargs.network: evil_nets:make)" in error
            assert len(error.splitlines()) == 1
    assert not (run / "executed").exists()
    assert not (tmp_path / "executed").exists()


def test_the_managed_classes_take_it() -> None:
    spec = SpaceSpec(ObservationSpec.vector(3), ActionSpec("continuous", low=(-1.0,), high=(1.0,)))
    for cls in (PPO, SAC):
        agent = cls("Pendulum-v1", network=own_networks.make_pair)
        policy = get_algorithm(cls.algo_name).make_policy(agent.config.algo_kwargs, spec, init_generator(0))
        assert sum(isinstance(module, CustomTrunk) for module in policy.network.modules()) == 2
    assert managed("dqn") is DQN
