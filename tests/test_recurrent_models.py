"""The LSTM: the same numbers whether it unrolls in batches, steps in torch, or steps in numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from rollouts import DISCRETE, GAUSSIAN, IMAGE, observations
from torch import Tensor

from rl_training.algorithms.base import init_generator
from rl_training.models import LSTMCore, LSTMQNetwork, RecurrentActorCritic
from rl_training.types import SpaceSpec


def make_core(layers: int, inputs: int = 4, hidden: int = 6) -> LSTMCore:
    return LSTMCore(inputs, hidden, layers, init_generator(0))


def masked_loop(core: LSTMCore, x: Tensor, start: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """The definition: state * (1 - start) before each step."""
    outputs = []
    for t in range(len(x)):
        keep = (1.0 - start[t].float())[:, None, None]
        h, c = core.step(x[t], h * keep, c * keep)
        outputs.append(h[:, -1])
    return torch.stack(outputs)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_batched_unroll_equals_per_episode_unrolls(layers: int) -> None:
    core, rng = make_core(layers), np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((9, 3, 4), np.float32))
    h, c = (torch.from_numpy(rng.standard_normal((3, layers, 6), np.float32)) for _ in range(2))
    start = torch.zeros(9, 3, dtype=torch.bool)
    start[[2, 6], 0] = start[5, 1] = True
    with torch.no_grad():
        whole = masked_loop(core, x, start, h, c)
        for env in range(3):
            cuts = [0, *torch.nonzero(start[:, env]).flatten().tolist(), 9]
            for begin, end in pairwise(cuts):
                row = slice(env, env + 1)
                state = (h[row], c[row]) if begin == 0 else (torch.zeros(1, layers, 6), torch.zeros(1, layers, 6))
                out = core(x[begin:end, row], *state)[0]
                torch.testing.assert_close(out, whole[begin:end, row], rtol=1e-5, atol=1e-6)


def test_a_forget_bias_makes_the_memory_last() -> None:
    """With no input, the cell keeps sigmoid(bias) of itself in each step, in every layer."""
    core = LSTMCore(4, 6, 2, init_generator(0), forget_bias=3.0)
    for k in range(2):
        getattr(core.lstm, f"weight_hh_l{k}").data.zero_()
        getattr(core.lstm, f"weight_ih_l{k}").data.zero_()
    with torch.no_grad():
        _, _, cell = core(torch.zeros(20, 1, 4), torch.zeros(1, 2, 6), torch.ones(1, 2, 6))
    torch.testing.assert_close(cell, torch.full((1, 2, 6), float(torch.sigmoid(torch.tensor(3.0))) ** 20))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_numpy_and_torch_steps_equal_the_unroll(layers: int) -> None:
    core, rng = make_core(layers), np.random.default_rng(1)
    for parameter in core.parameters():  # biases too
        parameter.data.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape), np.float32)))
    x = rng.standard_normal((5, 2, 4), np.float32)
    h, c = (rng.standard_normal((2, layers, 6), np.float32) for _ in range(2))
    with torch.no_grad():
        out, h_after, c_after = core(torch.from_numpy(x), torch.from_numpy(h), torch.from_numpy(c))
    numpy_step = core.numpy_step()
    h_torch, c_torch = torch.from_numpy(h), torch.from_numpy(c)
    for t in range(5):
        h, c = numpy_step(x[t], h, c)
        with torch.no_grad():
            h_torch, c_torch = core.step(torch.from_numpy(x[t]), h_torch, c_torch)
        np.testing.assert_allclose(h[:, -1], out[t].numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(h, h_torch.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(h, h_after.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(c, c_after.numpy(), rtol=1e-4, atol=1e-5)


def test_numpy_steps_survive_large_inputs() -> None:
    core = make_core(1)
    with np.errstate(all="raise", under="ignore"):
        h, c = core.numpy_step()(np.full((1, 4), 1e6, np.float32), *core.initial_state(1))
    assert np.isfinite(h).all()
    assert np.isfinite(c).all()


def test_initial_weights_come_from_their_own_generator_and_are_orthogonal() -> None:
    before = torch.random.get_rng_state()
    first, second = make_core(2), make_core(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    for found, expected in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(found, expected)
    weight = dict(first.lstm.named_parameters())["weight_hh_l1"].detach()
    for gate in torch.split(weight, 6):
        torch.testing.assert_close(gate @ gate.T, torch.eye(6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("spec", [DISCRETE, GAUSSIAN, IMAGE], ids=["discrete", "continuous", "image"])
def test_a_step_in_numpy_in_torch_and_for_export_agree(spec: SpaceSpec, shared: bool) -> None:
    network = RecurrentActorCritic(spec, (8,), init_generator(0), lstm_size=6, lstm_layers=2, shared_lstm=shared)
    rng = np.random.default_rng(0)
    state = tuple(rng.standard_normal(array.shape, np.float32) for array in network.initial_state(3))
    assert len(state) == (2 if shared else 4)
    obs = observations(spec, (3,), rng)
    output, after = network.numpy_step()(obs, state)
    with torch.no_grad():
        exported, exported_state = network.action_step(torch.from_numpy(obs), *map(torch.from_numpy, state[:2]))
        actor, critic = network.unroll(torch.from_numpy(obs[None]), [torch.from_numpy(array) for array in state])
        unrolled, value = network.outputs(actor[0], critic[0])
        alone = network.value(torch.from_numpy(obs), [torch.from_numpy(array) for array in state])
    for other in (exported.numpy(), unrolled.numpy()):
        np.testing.assert_allclose(output, other, rtol=1e-3, atol=1e-5)
    for ours, exported_part in zip(after, exported_state, strict=False):
        np.testing.assert_allclose(ours, exported_part.numpy(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(alone, value, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------------- Q-values


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize(("spec", "encoder"), [(DISCRETE, (8,)), (DISCRETE, ()), (IMAGE, (8,))], ids=["mlp", "bare", "image"])
def test_q_values_agree_in_numpy_in_torch_and_along_a_sequence(
    spec: SpaceSpec, encoder: tuple[int, ...], previous: bool
) -> None:
    network = LSTMQNetwork(
        spec.observation,
        3,
        init_generator(0),
        encoder_sizes=encoder,
        lstm_size=6,
        lstm_layers=2,
        hidden_sizes=(8,),
        dueling=previous,
        takes_previous=previous,
    )
    rng, time = np.random.default_rng(0), 4
    obs = observations(spec, (time, 3), rng)
    before = rng.standard_normal((time, 3, 4), np.float32) if previous else None
    state = tuple(rng.standard_normal((3, 2, 6), np.float32) for _ in range(2))
    torch_state = tuple(torch.from_numpy(array) for array in state)
    with torch.no_grad():
        along, last = network.q_values_sequence(
            torch.from_numpy(obs), torch_state, None if before is None else torch.from_numpy(before)
        )
    step = network.numpy_step()
    for t in range(time):
        row = None if before is None else before[t]
        q_values, state = step(obs[t], state, row)
        np.testing.assert_allclose(q_values, along[t].numpy(), rtol=1e-3, atol=1e-5)
    for found, expected in zip(state, last, strict=True):
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-5)


def test_every_weight_of_the_q_network_counts() -> None:
    network = LSTMQNetwork((4,), 3, init_generator(0), lstm_layers=2, takes_previous=True, dueling=True)
    q_values, _ = network.q_values_sequence(torch.randn(5, 2, 4), network.initial_state(2), torch.randn(5, 2, 4))
    gradients = torch.autograd.grad(q_values.square().sum(), list(network.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
