"""The optimisers on a flat vector against torch.optim, over many steps with clipping and a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import ALGORITHMS, tiny_config
from torch import Tensor, nn

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.algorithms.optimizer import FlatAdam, FlatRMSprop, make_optimizer
from rl_training.runtime.trainer import Trainer
from rl_training.schedules import CosineSchedule

STEPS = 300
SIZE = 40
RATE = CosineSchedule(0.05, 0.001, STEPS)

#: settings of a config, and the optimiser of torch that they stand for
CASES: dict[str, tuple[dict[str, Any], Callable[[list[nn.Parameter]], torch.optim.Optimizer]]] = {
    "adam": ({}, lambda p: torch.optim.Adam(p, fused=True)),
    "adam, betas": (
        {"adam_betas": (0.5, 0.9), "adam_eps": 1e-5},
        lambda p: torch.optim.Adam(p, betas=(0.5, 0.9), eps=1e-5, fused=True),
    ),
    "adam, decay": ({"weight_decay": 0.1}, lambda p: torch.optim.Adam(p, weight_decay=0.1, fused=True)),
    "adamw": ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, fused=True)),
    "adamw, decay": (
        {"optimizer": "adamw", "weight_decay": 0.3},
        lambda p: torch.optim.AdamW(p, weight_decay=0.3, fused=True),
    ),
    "rmsprop": ({"optimizer": "rmsprop"}, lambda p: torch.optim.RMSprop(p, foreach=False)),
    "rmsprop, momentum": (
        {"optimizer": "rmsprop", "rmsprop_momentum": 0.9, "rmsprop_alpha": 0.95, "adam_eps": 0.01},
        lambda p: torch.optim.RMSprop(p, momentum=0.9, alpha=0.95, eps=0.01, foreach=False),
    ),
    "rmsprop, centered": (
        {"optimizer": "rmsprop", "rmsprop_centered": True, "rmsprop_momentum": 0.5, "weight_decay": 0.02},
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5, weight_decay=0.02, foreach=False),
    ),
    "rmsprop, centered, no momentum": (
        {"optimizer": "rmsprop", "rmsprop_centered": True},
        lambda p: torch.optim.RMSprop(p, centered=True, foreach=False),
    ),
}


class Vector(nn.Module):
    """One parameter vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-2.0, 2.0, SIZE))

    def losses(self, data: Tensor) -> Tensor:
        """Linear in the weights, so that rounding in one step has no effect on the gradient of the next."""
        return data @ self.weight


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    # Of very different sizes, so that some gradients are clipped and some are not.
    scales = 10.0 ** torch.empty(STEPS).uniform_(-2.0, 1.0, generator=generator)
    return [scale * torch.randn(8, SIZE, generator=generator) for scale in scales]


def oracle(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], max_norm: float | None) -> tuple[list[Tensor], int]:
    """The weights after each step, and the number of steps in which the gradient was clipped."""
    module = Vector()
    optimizer = make(list(module.parameters()))
    weights, clipped = [], 0
    for i, data in enumerate(batches()):
        optimizer.param_groups[0]["lr"] = RATE(i)
        optimizer.zero_grad()
        losses = module.losses(data)
        losses.backward(torch.full_like(losses, 1.0 / len(losses)))  # type: ignore[no-untyped-call]
        if max_norm is not None:
            clipped += bool(nn.utils.clip_grad_norm_(module.parameters(), max_norm) > max_norm)
        optimizer.step()
        weights.append(module.weight.detach().clone())
    return weights, clipped


@pytest.mark.parametrize("max_norm", [None, 5.0])
@pytest.mark.parametrize("case", CASES)
def test_every_step_is_bit_for_bit_that_of_torch(case: str, max_norm: float | None) -> None:
    settings, make = CASES[case]
    expected, clipped = oracle(make, max_norm)
    assert max_norm is None or 20 < clipped < STEPS - 20
    module = Vector()
    optimizer = make_optimizer(module, AlgorithmConfig(**settings), max_norm=max_norm)
    for i, data in enumerate(batches()):
        optimizer.step(module.losses(data), RATE(i))
        assert torch.equal(module.weight, expected[i]), i


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 3e38])
def test_a_gradient_that_is_not_finite_is_clipped_as_torch_does_it(wrong: float) -> None:
    """It must reach the weights, where divergence is noticed, and not be scaled to something harmless."""
    module, twin = Vector(), Vector()
    optimizer = make_optimizer(module, AlgorithmConfig(), max_norm=5.0)
    optimizer.gradient[:] = torch.linspace(-wrong, wrong, SIZE)
    twin.weight.grad = optimizer.gradient.clone()
    nn.utils.clip_grad_norm_(twin.parameters(), 5.0)
    optimizer._clip(5.0)
    assert torch.equal(optimizer.gradient.nan_to_num(7.0), twin.weight.grad.nan_to_num(7.0))


@pytest.mark.parametrize("case", CASES)
def test_the_traced_step_takes_the_same_path(case: str) -> None:
    """In the same precision, with operations in another order."""
    settings, make = CASES[case]
    expected, _ = oracle(make, 5.0)
    module = Vector()
    optimizer = make_optimizer(module, AlgorithmConfig(**settings), max_norm=5.0)
    for i, data in enumerate(batches()):

        def loss(flat: Tensor, data: Tensor = data) -> tuple[Tensor, Tensor]:
            losses = data @ flat
            return losses.mean(), losses

        with torch.no_grad():
            optimizer.traced_step(optimizer.tensors, loss, torch.tensor(RATE(i), dtype=torch.float64))
        torch.testing.assert_close(module.weight.detach(), expected[i], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_restored_optimizer_continues_exactly(case: str) -> None:
    settings, _ = CASES[case]
    data = batches()[:20]
    whole, first, second = Vector(), Vector(), Vector()
    config = AlgorithmConfig(**settings)
    straight, before = (make_optimizer(module, config, max_norm=1.0) for module in (whole, first))
    for optimizer, module, part in ((straight, whole, data), (before, first, data[:10])):
        for i, batch in enumerate(part):
            optimizer.step(module.losses(batch), RATE(i))
    after = make_optimizer(second, config, max_norm=1.0)
    second.weight.data.copy_(first.weight.data)
    after.load_state_dict(before.state_dict())
    for i, batch in enumerate(data[10:], start=10):
        after.step(second.losses(batch), RATE(i))
    assert torch.equal(whole.weight, second.weight)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_uses_the_configured_optimizer(algo: str) -> None:
    for name, kind in (("rmsprop", FlatRMSprop), ("adamw", FlatAdam)):
        trainer = Trainer(tiny_config(algo, algo_kwargs={"optimizer": name}))
        trainer.close()
        optimizers = [stage.optimizer for stage in trainer.algorithm.updater._stages]
        assert optimizers
        assert all(type(optimizer) is kind for optimizer in optimizers)
