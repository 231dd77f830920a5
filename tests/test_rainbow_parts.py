"""Rainbow's parts, each on its own: dueling heads, noisy layers, prioritised replay, action masks, images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import family, settings_of, tiny_config
from torch import nn

from rl_training.algorithms.base import init_generator
from rl_training.algorithms.q_values import select_actions
from rl_training.algorithms.update import Draw
from rl_training.algorithms.value import ValueAlgorithm
from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer
from rl_training.models import MLP, NatureCNN, NoisyLinear, ValueHead
from rl_training.models.noisy import noisy_layers
from rl_training.runtime.export import export_policy
from rl_training.runtime.learner import OffPolicyLearner
from rl_training.runtime.trainer import Trainer
from rl_training.types import TransitionBatch, Transitions

VALUE_FAMILY = family(ValueAlgorithm)


# ------------------------------------------------------------------------------------------------------- dueling


def dueling_head(values: torch.Tensor, advantages: torch.Tensor) -> ValueHead:
    """A head whose streams give these numbers for any input."""
    actions, atoms = advantages.shape
    head = ValueHead(1, (), actions, init_generator(0), atoms=atoms, dueling=True)
    assert head.value is not None
    with torch.no_grad():
        for stream, bias in ((head.value, values), (head.advantage, advantages.reshape(-1))):
            stream.linears[0].weight.zero_()
            stream.linears[0].bias.copy_(bias)
    return head


def test_dueling_subtracts_the_mean_over_actions() -> None:
    head = dueling_head(torch.tensor([2.0]), torch.tensor([[1.0], [3.0], [5.0]]))
    assert head(torch.zeros(1, 1))[0, :, 0].tolist() == [0.0, 2.0, 4.0]
    assert head.numpy_forward(noisy=False)(np.zeros((1, 1), np.float32))[0, :, 0].tolist() == [0.0, 2.0, 4.0]


def test_dueling_of_distributions_works_atom_by_atom() -> None:
    values, advantages = torch.tensor([2.0, 10.0]), torch.tensor([[1.0, 0.0], [3.0, 0.0], [5.0, 9.0]])
    expected = [[0.0, 7.0], [2.0, 7.0], [4.0, 16.0]]
    head = dueling_head(values, advantages)
    assert head(torch.zeros(1, 1))[0].tolist() == expected
    assert head.numpy_forward(noisy=False)(np.zeros((1, 1), np.float32))[0].tolist() == expected


# --------------------------------------------------------------------------------------------------------- noisy


def test_noise_is_rank_one_and_initialised_as_published() -> None:
    layer = NoisyLinear(16, 8, init_generator(0))
    layer.resample(np.random.default_rng(0))
    noise = (layer.weight - layer.weight_mean).detach()
    assert torch.linalg.matrix_rank(noise).item() == 1
    bound = 1 / np.sqrt(16)
    assert layer.weight_mean.abs().max() <= bound
    assert layer.weight_sigma.flatten().tolist() == pytest.approx([0.5 * bound] * 128)
    torch.testing.assert_close(layer.bias - layer.bias_mean, layer.bias_sigma * layer.noise_out)


def test_noise_is_the_signed_root_of_a_normal() -> None:
    layer = NoisyLinear(20_000, 1, init_generator(0))
    layer.resample(np.random.default_rng(0))
    back = layer.noise_in.sign() * layer.noise_in**2
    assert back.mean().item() == pytest.approx(0.0, abs=0.03)
    assert back.std().item() == pytest.approx(1.0, abs=0.03)


def test_layers_and_draws_are_independent() -> None:
    mlp = MLP([32, 32, 32], init_generator(0), noisy=True)
    rng = np.random.default_rng(0)
    layers = [layer for layer in mlp.linears if isinstance(layer, NoisyLinear)]
    assert len(layers) == 2
    drawn = []
    for _ in range(2):
        for layer in layers:
            layer.resample(rng)
            drawn += [layer.noise_in.clone(), layer.noise_out.clone()]
    correlations = np.corrcoef(torch.stack(drawn).numpy())
    assert np.abs(correlations - np.eye(len(drawn))).max() < 0.6


def test_no_noise_in_evaluation_and_the_same_noise_in_numpy() -> None:
    mlp = MLP([4, 8, 3], init_generator(0), noisy=True)
    rng = np.random.default_rng(0)
    for layer in mlp.linears:
        assert isinstance(layer, NoisyLinear)
        layer.resample(rng)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    noisy = mlp.train()(x).detach()
    calm = mlp.eval()(x).detach()
    assert not torch.allclose(noisy, calm)
    np.testing.assert_allclose(mlp.numpy_forward(noisy=True)(x.numpy()), noisy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mlp.numpy_forward(noisy=False)(x.numpy()), calm, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("algo", VALUE_FAMILY)
def test_a_noisy_agent_explores_by_noise_and_is_deterministic_in_evaluation(algo: str) -> None:
    trainer = Trainer(tiny_config(algo, algo_kwargs={"noisy": True, "learning_starts": 20, "train_freq": 1}))
    trainer.train(60)
    policy: Any = trainer.policy
    assert policy.epsilon(10) == 1.0
    assert policy.epsilon(60) == 0.0
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    noisy, again = policy.q(obs, noisy=True), policy.q(obs, noisy=True)
    assert np.array_equal(noisy, again)  # one noise until the next update
    greedy = policy.q(obs)
    trainer.train(61)
    assert not np.allclose(policy.q(obs, noisy=True), noisy)
    assert not np.allclose(noisy, greedy)
    assert np.array_equal(policy.act(obs, ()).action, policy.q(obs).argmax(1))


def test_acting_through_torch_has_noise_only_where_it_explores() -> None:
    """A layer normalisation has no numpy twin."""
    settings = {"noisy": True, "layer_norm": True, "learning_starts": 20, "train_freq": 1}
    trainer = Trainer(tiny_config("dqn", algo_kwargs=settings))
    trainer.train(60)
    policy: Any = trainer.policy
    obs = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    with torch.no_grad():
        noisy = policy.network.train()(torch.from_numpy(obs)).numpy()
        calm = policy.network.eval()(torch.from_numpy(obs)).numpy()
    for training in (True, False):
        policy.network.train(training)
        np.testing.assert_array_equal(policy.q(obs, noisy=True), noisy)
        np.testing.assert_array_equal(policy.q(obs), calm)
        assert all(module.training is training for module in policy.network.modules())
    assert not np.allclose(noisy, calm)


def noise_of(network: nn.Module) -> torch.Tensor:
    return torch.cat([torch.cat([layer.noise_in, layer.noise_out]) for layer in noisy_layers(network)])


@pytest.mark.parametrize("algo", VALUE_FAMILY)
def test_each_update_draws_new_noise_for_both_networks(algo: str) -> None:
    algorithm: Any = Trainer(tiny_config(algo, algo_kwargs={"noisy": True})).algorithm
    zeros = torch.zeros(3)
    batch = TransitionBatch(torch.zeros(3, 4), zeros.long(), zeros, torch.zeros(3, 4), zeros)
    drawn = []
    for _ in range(3):
        drawn += [noise_of(algorithm.policy.network), noise_of(algorithm.target)]
        algorithm.update(batch)
    assert len(drawn[0]) > 30
    for i, first in enumerate(drawn):
        assert not any((first == second).any() for second in drawn[:i])  # not even one number of one layer


# --------------------------------------------------------------------------------------------------- prioritised


def prioritised(priorities: list[float], alpha: float, rng: np.random.Generator | None = None) -> PrioritizedReplayBuffer:
    count = len(priorities)
    buffer = PrioritizedReplayBuffer(count, (1,), alpha=alpha, rng=rng or np.random.default_rng(0))
    obs = np.arange(count, dtype=np.float32)[:, None]
    zeros = np.zeros(count, np.float32)
    buffer.add(Transitions(obs, np.zeros(count, np.int64), zeros, obs, zeros))
    buffer.update_priorities(np.arange(count), np.array(priorities))
    return buffer


def test_weights_and_proportions_of_the_worked_example() -> None:
    buffer = prioritised([1.0, 2.0, 4.0, 1.0], alpha=0.5)
    weights: dict[int, float] = {}
    counts = np.zeros(4)
    for _ in range(300):
        batch = buffer.sample(64, beta=0.4)
        assert batch.indices is not None
        assert batch.weights is not None
        counts += np.bincount(batch.indices, minlength=4)
        weights.update(zip(batch.indices.tolist(), batch.weights.tolist(), strict=True))
        assert batch.obs[:, 0].tolist() == batch.indices.tolist()
    expected = np.array([0.1847, 0.2612, 0.3694, 0.1847])
    np.testing.assert_allclose([weights[i] for i in range(4)], [1.0, 0.8706, 0.7579, 1.0], atol=1e-3)
    n = counts.sum()
    assert float(((counts - n * expected) ** 2 / (n * expected)).sum()) < 16.3  # 0.999 quantile, 3 degrees of freedom


def test_new_transitions_get_the_largest_priority_ever_seen() -> None:
    buffer = prioritised([1.0, 8.0, 1.0, 1.0], alpha=1.0)
    buffer.update_priorities(np.array([1]), np.array([1.0]))  # the 8 is gone, but was seen
    one = np.ones((1, 1), np.float32)
    buffer.add(Transitions(one * 50, np.zeros(1, np.int64), one[0], one, one[0]))  # takes the place of the oldest
    counts = np.bincount(np.asarray(buffer.sample(2200).indices))
    assert counts[0] / 2200 == pytest.approx(8 / 11, abs=0.02)


def test_among_duplicates_the_last_priority_counts() -> None:
    buffer = prioritised([1.0, 1.0], alpha=1.0)
    buffer.update_priorities(np.array([0, 0]), np.array([5.0, 3.0]))
    counts = np.bincount(np.asarray(buffer.sample(4000).indices))
    assert counts[0] / 4000 == pytest.approx(0.75, abs=0.01)


def test_alpha_zero_is_uniform_and_its_weights_are_one() -> None:
    batch = prioritised([1.0, 50.0, 3.0], alpha=0.0).sample(3000, beta=1.0)
    assert batch.weights is not None
    assert batch.weights.tolist() == [1.0] * 3000
    assert np.bincount(batch.indices).tolist() == [1000, 1000, 1000]  # type: ignore[arg-type]


def test_prioritised_state_round_trip_continues_exactly() -> None:
    original = prioritised([1.0, 2.0, 4.0, 1.0], alpha=0.6, rng=np.random.default_rng(9))
    restored = prioritised([1.0] * 4, alpha=0.6, rng=np.random.default_rng(9))
    restored.load_state_dict(original.state_dict())
    found, expected = restored.sample(100), original.sample(100)
    assert np.array_equal(found.indices, expected.indices)  # type: ignore[arg-type]
    assert torch.equal(found.weights, expected.weights)  # type: ignore[arg-type]


@pytest.mark.parametrize("algo", VALUE_FAMILY)
def test_importance_weights_reach_the_gradient(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draw, "__call__", lambda draw, inputs, rng, device: torch.full(draw.shape(inputs), 0.3))
    trainer = Trainer(tiny_config(algo, algo_kwargs={"max_grad_norm": None}))
    generator = torch.Generator().manual_seed(0)
    batch = TransitionBatch(
        torch.randn(4, 4, generator=generator),
        torch.tensor([0, 1, 0, 1]),
        torch.randn(4, generator=generator),
        torch.randn(4, 4, generator=generator),
        torch.full((4,), 0.9),
    )
    algorithm: Any = trainer.algorithm

    def gradient(weights: torch.Tensor | None, rows: list[int]) -> torch.Tensor:
        fields: Any = [field[rows] for field in batch[:5]]
        picked = TransitionBatch(*fields)._replace(weights=weights)
        before = algorithm.optimizer.parameters.clone()
        algorithm.update(picked)
        found: torch.Tensor = algorithm.optimizer.gradient.clone()
        algorithm.optimizer.parameters.copy_(before)
        return found

    alone = torch.stack([gradient(None, [i]) for i in range(4)])
    weights = torch.tensor([1.0, 0.5, 0.0, 0.25])
    expected = (alone * weights[:, None]).mean(dim=0)
    torch.testing.assert_close(gradient(weights, [0, 1, 2, 3]), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("algo", VALUE_FAMILY)
def test_training_feeds_priorities_back(algo: str) -> None:
    trainer = Trainer(tiny_config(algo, algo_kwargs={"prioritized": True, "buffer_size": 500}))
    trainer.train()
    buffer: Any = trainer.learner.replay.buffer  # type: ignore[attr-defined]
    priorities = buffer.state_dict()["priorities"]
    assert len(np.unique(priorities)) > 20
    assert (priorities > 0).all()


class NotesBeta:
    """A buffer that only notes what correction it is asked for."""

    def __init__(self) -> None:
        self.noted: list[float] = []

    def sample(self, batch_size: int, beta: float) -> None:
        self.noted.append(beta)


@pytest.mark.parametrize("algo", [*VALUE_FAMILY, "r2d2"])
@pytest.mark.parametrize(("steps", "expected"), [(200, [0.4, 0.7, 1.0, 1.0]), (0, [0.4] * 4)])
def test_the_correction_becomes_complete_or_stays(algo: str, steps: int, expected: list[float]) -> None:
    settings = {"prioritized": True, "priority_beta": 0.4, "priority_beta_steps": steps}
    learner = Trainer(tiny_config(algo, algo_kwargs=settings_of(algo, settings))).learner
    assert isinstance(learner, OffPolicyLearner)
    buffer: Any = NotesBeta()
    learner.replay.buffer = buffer
    for env_steps in (0, 100, 200, 10_000):
        learner.replay.sample(env_steps)
    assert buffer.noted == pytest.approx(expected)


def test_the_tree_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, needed_bytes = np.random.default_rng(0), list[int]()
    monkeypatch.setattr("rl_training.data.replay_buffer.require_memory", lambda needed, what: needed_bytes.append(needed))
    plain = ReplayBuffer(10_000, (1,), rng=rng)
    prioritised = PrioritizedReplayBuffer(10_000, (1,), alpha=0.5, rng=rng)
    assert needed_bytes == [plain.nbytes, prioritised.nbytes]
    assert prioritised.nbytes - plain.nbytes > 8 * 10_000


# --------------------------------------------------------------------------------------------------- action masks


def test_the_bootstrap_takes_the_best_allowed_action() -> None:
    nothing = torch.zeros(2)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    batch = TransitionBatch(nothing, nothing.long(), nothing, nothing, nothing, next_action_mask=mask)
    q_values = torch.tensor([[1.0, 9.0, 2.0], [1.0, 9.0, 2.0]])
    assert select_actions(q_values, batch).tolist() == [2, 1]


@pytest.mark.parametrize("algo", VALUE_FAMILY)
@pytest.mark.parametrize("double", [False, True])
def test_no_loss_bootstraps_from_a_forbidden_action(algo: str, double: bool) -> None:
    """Networks that are tables, so that a loop over rows and actions can do the same by hand."""
    config = tiny_config(algo, env_id="rl_training_test_envs:Masked-v0", algo_kwargs={"double": double})
    algorithm: Any = Trainer(config).algorithm
    generator, rows, actions = torch.Generator().manual_seed(0), 40, 4
    drawn = algorithm.draws()  # a network has one quantile for each fraction that it is given
    shape = (actions, 1) if drawn else algorithm.target(torch.zeros(1, *algorithm.policy.spec.observation.shape)).shape[1:]
    tables = {name: torch.randn(2 * rows, *shape, generator=generator) for name in ("online", "target")}
    support = getattr(algorithm.target, "support", None)

    def value(table: str, row: int, action: int) -> float:
        atoms = tables[table][row, action]
        return float(atoms.mean() if support is None else atoms.softmax(0) @ support)

    chooser = "online" if double else "target"
    best = [max(range(actions), key=lambda a: value(chooser, rows + i, a)) for i in range(rows)]
    mask = torch.rand(rows, actions, generator=generator) < 0.7
    mask[:, 0] = True
    mask[torch.arange(rows), best] = False  # never the best
    mask[torch.tensor(best) == 0, 1] = True  # and always one
    batch = TransitionBatch(
        torch.arange(rows)[:, None],
        torch.randint(0, actions, (rows,), generator=generator),
        torch.randn(rows, generator=generator),
        torch.arange(rows, 2 * rows)[:, None],
        torch.rand(rows, generator=generator) / 2,  # so that nothing clips
        next_action_mask=mask,
    )
    expected = []
    for i in range(rows):
        allowed = [a for a in range(actions) if mask[i, a]]
        chosen = max(allowed, key=lambda a: value(chooser, rows + i, a))
        expected.append(float(batch.reward[i]) + float(batch.discount[i]) * value("target", rows + i, chosen))
    known = {name: torch.full(draw.shape(batch), 0.5) for name, draw in drawn.items()}

    def network(name: str) -> Callable[..., torch.Tensor]:
        def values(obs: torch.Tensor, *fractions: torch.Tensor) -> torch.Tensor:
            row = tables[name][obs[:, 0]]
            if not fractions:
                return row
            spread = torch.linspace(-1, 1, fractions[0].shape[1])
            return row + spread - spread.mean()

        return values

    output = algorithm.loss(network("online"), network("target"), batch, known)
    assert output.metrics["target_mean"].tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("algo", VALUE_FAMILY)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_masked_environment_is_only_given_allowed_actions(algo: str, n_step: int) -> None:
    config = tiny_config(
        algo,
        env_id="rl_training_test_envs:Masked-v0",
        num_envs=2,
        algo_kwargs={"n_step": n_step, "exploration_steps": 100},
    )
    trainer = Trainer(config)
    trainer.train()  # the environment asserts; evaluation is masked too
    batch = trainer.learner.replay.buffer.sample(200)  # type: ignore[attr-defined]
    position = batch.next_obs[:, 0].long()
    expected = torch.arange(4)[None] != position[:, None]  # the action of the same number as the position is forbidden
    assert torch.equal(batch.next_action_mask[batch.discount > 0], expected[batch.discount > 0])


def test_an_export_warns_that_it_knows_no_mask(tmp_path: Path) -> None:
    trainer = Trainer(tiny_config("dqn", env_id="rl_training_test_envs:Masked-v0"))
    with pytest.warns(UserWarning, match="masks actions.*best allowed action by the exported 'values'") as caught:
        export_policy(trainer.policy, trainer.config, tmp_path / "policy.safetensors")
    assert len(caught) == 1  # the verification is no prediction of the user's


def test_random_actions_are_uniform_over_the_allowed_ones() -> None:
    trainer = Trainer(tiny_config("dqn", env_id="rl_training_test_envs:Masked-v0"))
    mask = np.tile([True, False, True, True], (9000, 1))
    obs = np.zeros((9000, 1), np.float32)
    action = trainer.policy.act(obs, (), rng=np.random.default_rng(0), env_steps=0, action_mask=mask).action
    counts = np.bincount(action, minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 3000, atol=200)


# -------------------------------------------------------------------------------------------------------- images


def test_nature_cnn_has_the_published_shape() -> None:
    network = NatureCNN((4, 84, 84), init_generator(0))
    assert network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 512)
    assert network.head is not None
    assert network.head.in_features == 3136  # 64 x 7 x 7
