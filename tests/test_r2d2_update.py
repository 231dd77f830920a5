"""R2D2's update: targets by the book, priorities and weights by hand, padding and burn-in that leave no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from replays import held_slots
from sequences import ACTIONS, GAMMA, World, cut_up, make_algorithm, walk_targets
from torch import Tensor

from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.r2d2 import R2D2, R2D2Config, rescale, sequence_priorities, unrescale
from rl_training.experiment.config import load_config_data, resolve_config
from rl_training.types import SequenceBatch, UpdateResult

CASES: dict[str, dict[str, Any]] = {
    "n = 1": {"n_step": 1},
    "n = 3": {"n_step": 3},
    "n = 5, longer than a sequence": {"n_step": 5, "sequence_length": 4},
    "plain Q": {"n_step": 3, "double": False},
    "overlap": {"n_step": 3, "overlap": 2},
    "burn-in": {"n_step": 3, "burn_in": 4},
    "rescaled": {"n_step": 3, "rescale_values": True},
    "previous inputs": {"n_step": 3, "previous_inputs": True},
    "everything": {
        "n_step": 5,
        "sequence_length": 8,
        "overlap": 4,
        "burn_in": 4,
        "rescale_values": True,
        "previous_inputs": True,
        "dueling": True,
    },
}


def make_world(algorithm: Any, *, masked: bool = False, **options: Any) -> World:
    config = algorithm.config
    options = {"end_chance": 0.12, "seed": 5, **options}
    if isinstance(config, R2D2Config):
        options |= {"n_step": config.n_step, "overlap": config.overlap, "burn_in": config.burn_in, "alpha": 0.9}
        options["previous_actions"] = ACTIONS if config.previous_inputs else 0
    return World(300, sequence_length=config.sequence_length, masked=masked, **options)


def sample(world: World, count: int = 24) -> SequenceBatch:
    return world.buffer.gather(held_slots(world.buffer)[:count])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_targets_are_those_of_a_walk_through_the_episodes(case: str, masked: bool) -> None:
    algorithm = make_algorithm(R2D2, **{"sequence_length": 5, **CASES[case]})
    world = make_world(algorithm, masked=masked).run(70)
    batch = sample(world, 1000)
    output = algorithm.loss(batch)
    expected = [cut for env in range(world.num_envs) for cut in world.expected(env)]
    assert len(expected) == len(world.buffer) == batch.mask.shape[1]
    assert {episode.terminated for episodes in world.episodes for episode in episodes[:-1]} == {False, True}
    assert min(len(cut["action"]) for cut in expected) < algorithm.config.n_step or algorithm.config.n_step == 1
    found = output.metrics["target_mean"]
    for b, cut in enumerate(expected):
        targets = walk_targets(
            algorithm.policy.network,
            algorithm.target,
            cut,
            double=algorithm.config.double,
            rescaled=algorithm.config.rescale_values,
            masked=masked,
        )
        np.testing.assert_allclose(found[: len(targets), b].numpy(), targets, rtol=2e-4, atol=2e-4)


def test_a_bootstrap_is_not_the_value_of_the_next_observation() -> None:
    """With n = 3 the value comes from three steps further on: the trap that this family is known for."""
    algorithm = make_algorithm(R2D2, n_step=3, sequence_length=5)
    world = make_world(algorithm, end_chance=0.0).run(30)
    batch = sample(world)
    assert (batch.bootstrap == torch.arange(5)[:, None] + 3).all()
    right = algorithm.loss(batch).metrics["target_mean"]
    moved = batch.obs.clone()
    moved[1] += 1.0  # seen before the bootstrap, so it matters through the memory
    assert not torch.equal(algorithm.loss(batch._replace(obs=moved)).metrics["target_mean"], right)
    moved = batch.obs.clone()
    moved[-1] += 1.0  # only the last step bootstraps there
    changed = (algorithm.loss(batch._replace(obs=moved)).metrics["target_mean"] != right).any(dim=1)
    assert changed.tolist() == [False] * 4 + [True]


def spoil_padding(batch: SequenceBatch, last: Tensor) -> SequenceBatch:
    """Other values wherever nothing real is."""
    padded = batch.mask == 0
    rows = torch.arange(len(batch.obs) - batch.burn_in)[:, None] > last
    before = torch.zeros(batch.burn_in, len(last), dtype=torch.bool)
    if batch.has_burn_in is not None:
        before |= ~batch.has_burn_in
    unseen = torch.cat([before, rows])
    assert padded.any()
    assert unseen.any()
    obs = batch.obs.clone()
    obs[unseen] = 123.0
    previous = batch.previous
    if previous is not None:
        previous = previous.clone()
        previous[unseen] = 55.0
    return batch._replace(
        obs=obs,
        previous=previous,
        action=torch.where(padded, (batch.action + 1) % ACTIONS, batch.action),
        reward=torch.where(padded, 77.0, batch.reward),
        discount=torch.where(padded, 3.0, batch.discount),
        bootstrap=torch.where(padded, 0, batch.bootstrap),
    )


@pytest.mark.parametrize("algorithm_class", [R2D2, DRQN])
@pytest.mark.parametrize("case", CASES)
def test_padding_changes_nothing_by_not_one_bit(case: str, algorithm_class: Any) -> None:
    wanted = {k: v for k, v in CASES[case].items() if k in algorithm_class.config_class.model_fields}
    algorithm = make_algorithm(algorithm_class, **{"sequence_length": 5, "max_grad_norm": None, **wanted})
    batch = sample(make_world(algorithm).run(60))
    batch = batch._replace(weights=torch.linspace(0.2, 1.0, batch.mask.shape[1]))
    last = (batch.bootstrap * batch.mask.long()).amax(dim=0)
    results = []
    for one in (batch, spoil_padding(batch, last)):
        twin = make_algorithm(algorithm_class, **{"sequence_length": 5, "max_grad_norm": None, **wanted})
        result = twin.update(one)
        results.append(
            (result.metrics, result.priorities, twin.optimizer.gradient.clone(), twin.optimizer.parameters.clone())
        )
    (metrics, priorities, gradient, parameters), other = results
    assert metrics == other[0]
    assert (priorities is None and other[1] is None) or torch.equal(priorities, other[1])
    assert torch.equal(gradient, other[2])
    assert torch.equal(parameters, other[3])
    assert gradient.abs().sum() > 0


def test_the_loss_is_the_weighted_mean_over_real_steps() -> None:
    algorithm = make_algorithm(R2D2, n_step=3, sequence_length=5, max_grad_norm=None)
    batch = sample(make_world(algorithm).run(60))
    weights = torch.linspace(0.2, 1.0, batch.mask.shape[1])
    loss = algorithm.loss(batch).loss
    total, count = torch.zeros(()), 0
    for t, b in torch.nonzero(batch.mask).tolist():
        total, count = total + weights[b] * loss[t, b], count + 1
    expected = torch.autograd.grad(total / count, list(algorithm.policy.network.parameters()))
    result = algorithm.update(batch._replace(weights=weights))
    assert result.metrics["loss"] == pytest.approx(float(total.detach()) / count, rel=1e-5)
    flat = torch.cat([part.reshape(-1) for part in expected])
    torch.testing.assert_close(algorithm.optimizer.gradient, flat, rtol=1e-4, atol=1e-6)


def test_burn_in_carries_no_gradient_but_counts() -> None:
    algorithm = make_algorithm(R2D2, n_step=2, sequence_length=5, burn_in=3)
    batch = sample(make_world(algorithm).run(80))
    assert batch.has_burn_in is not None
    burned = batch.has_burn_in
    assert burned.any()
    assert not burned.all()
    obs = batch.obs.clone().requires_grad_()
    loss = algorithm.loss(batch._replace(obs=obs)).loss * batch.mask
    (gradient,) = torch.autograd.grad(loss.sum(), obs)
    assert not gradient[:3].any()
    assert gradient[3].any()
    moved = batch.obs.clone()
    moved[:3] += 1.0
    changed = (algorithm.loss(batch._replace(obs=moved)).loss * batch.mask != loss).any(dim=0)
    assert torch.equal(changed, burned)  # a sequence at the beginning of its episode has none


def test_each_network_burns_in_with_its_own_weights() -> None:
    algorithm = make_algorithm(R2D2, n_step=2, sequence_length=5, burn_in=3)
    batch = sample(make_world(algorithm).run(80))
    online, target = (algorithm._begin(network, batch) for network in (algorithm.policy.network, algorithm.target))
    assert batch.has_burn_in is not None
    for a, b, stored in zip(online, target, batch.state, strict=True):
        differs = (a != b).flatten(1).any(dim=1)
        assert torch.equal(differs, batch.has_burn_in)
        assert torch.equal(a[~differs], stored[~differs])


def test_priorities_mix_the_largest_and_the_mean_error() -> None:
    error = torch.tensor([[1.0, 2.0], [4.0, 4.0], [1.0, 99.0], [2.0, 99.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    found = sequence_priorities(error, mask, 0.9)
    torch.testing.assert_close(found, torch.tensor([3.8, 0.9 * 4 + 0.1 * 3]))


def test_an_update_returns_the_priorities_of_its_sequences() -> None:
    algorithm = make_algorithm(R2D2, n_step=3, sequence_length=5, priority_eta=0.5)
    world = make_world(algorithm).run(60)
    assert algorithm.last_sequence_priorities is None
    batch = world.buffer.sample(6)
    error = algorithm.loss(batch).error
    result: UpdateResult = algorithm.update(batch)
    assert result.priorities is not None
    assert algorithm.last_sequence_priorities is result.priorities
    for b, priority in enumerate(result.priorities.tolist()):
        real = error[batch.mask[:, b] == 1, b]
        assert priority == pytest.approx(0.5 * float(real.max()) + 0.5 * float(real.mean()), rel=1e-5)
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert result.metrics["td_error_mean"] == pytest.approx(float(error[batch.mask == 1].mean()), rel=1e-5)


def test_value_rescaling_and_its_inverse() -> None:
    torch.testing.assert_close(rescale(torch.tensor([3.0, 99.0, 0.0, -3.0])), torch.tensor([1.003, 9.099, 0.0, -1.003]))
    x = torch.linspace(-1000, 1000, 4001, dtype=torch.float64)
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(rescale(unrescale(x)), x, rtol=1e-9, atol=1e-9)
    single = x.float()
    torch.testing.assert_close(unrescale(rescale(single)), single, rtol=1e-5, atol=1e-5)


def test_epsilon_is_spread_over_the_environments() -> None:
    algorithm = make_algorithm(
        R2D2, epsilon_spread=7.0, exploration_initial_eps=0.4, exploration_final_eps=0.4, learning_starts=10
    )
    policy = algorithm.policy
    assert np.asarray(policy.epsilons(9, 4)).tolist() == [1.0] * 4  # the warm-up
    expected = [0.4 ** (1 + 7 * i / 3) for i in range(4)]
    np.testing.assert_allclose(policy.epsilons(10, 4), expected)
    np.testing.assert_allclose(policy.epsilons(10, 1), [0.4])
    obs, rng, carry = np.zeros((4, 4), np.float32), np.random.default_rng(0), policy.initial_carry(4)
    greedy = policy.act(obs, carry).action
    random = np.mean([policy.act(obs, carry, rng=rng, env_steps=10).action != greedy for _ in range(4000)], axis=0)
    np.testing.assert_allclose(random, np.array(expected) * (ACTIONS - 1) / ACTIONS, atol=0.03)


def test_importance_weights_can_be_left_out() -> None:
    algorithm = make_algorithm(R2D2, sequence_length=5)
    world = make_world(algorithm).run(60)
    assert algorithm.update(world.buffer.sample(4)._replace(weights=None)).priorities is not None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"sequence_length": 8, "overlap": 8}, "overlap"),
        ({"sequence_length": 8, "overlap": 4, "burn_in": 5}, "burn_in"),
        ({"final_learning_rate": 1e-5}, "go together"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        R2D2Config.model_validate(settings)


def test_the_walk_on_numbers_worked_by_hand() -> None:
    """The twin itself, on numbers worked by hand: n = 3, gamma = .9, an episode of 4 steps that terminates."""
    from sequences import Episode

    episode = Episode([np.zeros(1)] * 5, [np.zeros(1)] * 4, [0] * 4, [1.0, 2.0, 3.0, 4.0], [np.ones(1)] * 4, True, True)
    (cut,) = cut_up(episode, sequence_length=6, gamma=GAMMA, n_step=3, overlap=0, burn_in=0)
    np.testing.assert_allclose(cut["reward"], [1 + 1.8 + 2.43, 2 + 2.7 + 3.24, 3 + 3.6, 4])
    np.testing.assert_allclose(cut["discount"], [0.9**3, 0, 0, 0])
    assert cut["bootstrap"] == [3, 4, 4, 4]


@pytest.mark.parametrize("algorithm_class", [R2D2, DRQN])
def test_a_loss_that_is_summed_over_time_by_hand(algorithm_class: Any) -> None:
    """The sum over the steps of each sequence and the mean over the sequences, with their weights; padding does not count."""
    settings: dict[str, Any] = {"sequence_length": 5, "max_grad_norm": None, "loss_over_time": "sum"}
    algorithm = make_algorithm(algorithm_class, **settings)
    batch = sample(make_world(algorithm).run(60))
    steps, sequences = batch.mask.shape
    assert batch.mask.sum() < steps * sequences  # some are padded
    weights = torch.linspace(0.2, 1.0, sequences)
    batch = batch._replace(weights=weights)
    twin = make_algorithm(algorithm_class, **settings)
    per_step = twin.loss(batch).loss
    by_hand = torch.stack(
        [weights[b] * sum(per_step[t, b] for t in range(steps) if batch.mask[t, b]) for b in range(sequences)]
    ).mean()
    expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(by_hand, list(twin.policy.network.parameters()))])
    algorithm.update(batch)
    torch.testing.assert_close(algorithm.optimizer.gradient, expected, rtol=1e-4, atol=1e-6)


def test_a_summed_loss_has_gradients_as_many_times_as_large_as_a_sequence_is_long() -> None:
    """So epsilon and the clipping norm of the paper mean what they mean there. The metrics stay means."""
    results = {}
    for how in ("mean", "sum"):
        algorithm = make_algorithm(R2D2, sequence_length=5, max_grad_norm=None, loss_over_time=how)
        batch = sample(make_world(algorithm, end_chance=0.0).run(30))
        assert (batch.mask == 1).all()
        results[how] = algorithm.update(batch), algorithm.optimizer.gradient.clone()
    torch.testing.assert_close(results["sum"][1], 5.0 * results["mean"][1], rtol=1e-4, atol=1e-6)
    assert results["sum"][0].metrics == results["mean"][0].metrics


def test_the_paper_config_sums_over_time() -> None:
    paper = resolve_config(load_config_data("r2d2/paper")).algo_kwargs
    assert isinstance(paper, R2D2Config)
    assert (paper.loss_over_time, paper.adam_eps, paper.max_grad_norm) == ("sum", 1e-3, 40.0)
    assert R2D2Config().loss_over_time == "mean"
