"""Devices without double precision, such as mps: none of their tensors is float64, and CPU runs do not change.

The device ``meta`` has shapes and types but no numbers. Here it takes the place of such a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from batches import SPEC as DISCRETE
from test_dqn_update import make_batch as discrete_batch
from test_sac_update import SPEC as CONTINUOUS
from test_sac_update import make_batch as continuous_batch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from rl_training.algorithms import compiled_graph
from rl_training.algorithms.base import init_generator
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.sac import SAC
from rl_training.models import ObservationNormalizer, encoder
from rl_training.rng import RandomStreams
from rl_training.runtime.divergence import weights_problem


class NoDoubles(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fails as soon as an operation has a tensor of float64 on the device ``meta``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                assert (value.device.type, value.dtype) != ("meta", torch.float64), f"{func} uses float64"
        return result


class Uncompiled(compiled_graph.CompiledGraph):
    """Runs the function itself instead of compiling it."""

    def prepare(self, batch: Sequence[Tensor]) -> Any:
        self._graphs[compiled_graph._layout(batch)] = self._flat
        return self._flat


@pytest.mark.parametrize(
    ("algorithm_class", "spec", "batch"), [(DQN, DISCRETE, discrete_batch()), (SAC, CONTINUOUS, continuous_batch())]
)
def test_a_compiled_update_has_no_doubles(
    algorithm_class: Any, spec: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_graph, "CompiledGraph", Uncompiled)
    monkeypatch.setattr(encoder, "SINGLE_PRECISION", ("meta",))
    config = algorithm_class.config_class(hidden_sizes=(8,))
    policy = algorithm_class.make_policy(config, spec, init_generator(0))
    policy.network.to("meta")
    with NoDoubles():  # type: ignore[no-untyped-call]
        algorithm = algorithm_class(policy, config, RandomStreams(0))
        moved = tree_map(lambda value: value.to("meta") if isinstance(value, Tensor) else value, batch)
        algorithm.compile(moved)
        algorithm.update(moved)
        algorithm.update(moved)
    assert algorithm.updates == 2


def test_the_statistics_of_observations_stay_where_doubles_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "SINGLE_PRECISION", ("meta",))
    normalizer = ObservationNormalizer(3)
    names = list(normalizer.state_dict())
    obs = np.random.default_rng(0).normal(5.0, 2.0, (50, 3)).astype(np.float32)
    with NoDoubles():  # type: ignore[no-untyped-call]
        normalizer.to("meta")
        normalizer.update(obs)
        assert normalizer(torch.zeros(2, 3, device="meta")).dtype == torch.float32
    assert list(normalizer.state_dict()) == names
    places = {name: (buffer.device.type, buffer.dtype) for name, buffer in normalizer.named_buffers()}
    assert places == {
        **dict.fromkeys(("count", "mean", "squares"), ("cpu", torch.float64)),
        **dict.fromkeys(("shift", "scale"), ("meta", torch.float32)),
    }
    np.testing.assert_allclose(normalizer.mean.numpy(), obs.astype(np.float64).mean(axis=0))


class AllTrue(NoDoubles):  # type: ignore[no-untyped-call]
    """Reads true wherever the device ``meta`` has no number to read."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].device.type == "meta":
            return True
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_weights_are_checked_where_statistics_have_stayed_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are on the device and the statistics on the CPU: no operation takes both."""
    monkeypatch.setattr(encoder, "SINGLE_PRECISION", ("meta",))
    config = DQNConfig(hidden_sizes=(8,), normalize_observations=True)
    policy = DQN.make_policy(config, DISCRETE, init_generator(0))
    policy.network.to("meta")
    assert {value.device.type for value in policy.network.state_dict().values()} == {"cpu", "meta"}
    with AllTrue():  # type: ignore[no-untyped-call]
        assert weights_problem(policy) is None
    statistics = next(value for value in policy.network.state_dict().values() if value.device.type == "cpu")
    statistics.fill_(torch.nan)
    with AllTrue():  # type: ignore[no-untyped-call]
        assert weights_problem(policy) is not None


def test_elsewhere_the_statistics_move_too() -> None:
    normalizer = ObservationNormalizer(3).to("meta")
    assert {buffer.device.type for buffer in normalizer.buffers()} == {"meta"}
