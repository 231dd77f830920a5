"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347) with generalised advantage estimation
(Schulman et al. 2015, arXiv:1506.02438)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import ExportModule, OnPolicyAlgorithm, Policy
from rl_training.algorithms.compiled import CompiledStep, Stage
from rl_training.algorithms.config import OnPolicyConfig
from rl_training.algorithms.optimizer import FlatAdam
from rl_training.algorithms.return_scale import ReturnScale
from rl_training.algorithms.value import encode_observation
from rl_training.data import Rollout
from rl_training.models import ActorCritic
from rl_training.models.action_head import FORBIDDEN, ActionHead
from rl_training.rng import RandomStreams
from rl_training.schedules import LinearSchedule
from rl_training.types import Array, Carry, PolicyOutput, SpaceSpec, State, UpdateResult


class PPOLoss(NamedTuple):
    """A loss before reduction, and what to report."""

    loss: Tensor  # (batch,)
    metrics: Mapping[str, Tensor]  # each (batch,)


class PPOConfig(OnPolicyConfig):
    """Settings of PPO: those of the on-policy family."""


def gae(reward: Array, value: Array, next_value: Array, discount: Array, trace: Array) -> Array:
    """Generalised advantage estimates, each array (time, env).

    ``next_value`` is the value of the true next observation; ``discount`` is gamma, and 0 where the episode terminated;
    ``trace`` is gamma * lambda, and 0 where it ended in either way.
    """
    assert reward.shape == value.shape == next_value.shape == discount.shape == trace.shape
    advantage: Array = reward + discount * next_value - value
    for t in range(len(advantage) - 2, -1, -1):
        advantage[t] += trace[t] * advantage[t + 1]
    return advantage


def ppo_loss(
    log_prob: Tensor,  # (batch,) of the actions under the policy now
    old_log_prob: Tensor,  # (batch,) and under the policy that acted
    advantage: Tensor,  # (batch,)
    value: Tensor,  # (batch,) now
    target: Tensor,  # (batch,) what the value should be
    entropy: Tensor,  # (batch,) of the policy now
    *,
    clip_range: float | Tensor,
    value_coef: float = 0.5,
    entropy_coef: float = 0.0,
    clip_value: float | None = None,
    old_value: Tensor | None = None,  # (batch,) the value when acting; for clip_value
) -> PPOLoss:
    """The clipped surrogate, value and entropy terms, one number per sample."""
    assert log_prob.shape == old_log_prob.shape == advantage.shape == value.shape == target.shape == entropy.shape
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    near_ratio = ratio.clamp(1.0 - clip_range, 1.0 + clip_range)  # type: ignore[arg-type]
    surrogate = torch.minimum(ratio * advantage, near_ratio * advantage)
    value_loss = (value - target).square()
    if clip_value is not None:
        assert old_value is not None
        near = old_value + (value - old_value).clamp(-clip_value, clip_value)
        value_loss = torch.maximum(value_loss, (near - target).square())
    loss = value_coef * value_loss - surrogate
    if entropy_coef:
        loss = loss - entropy_coef * entropy
    with torch.no_grad():
        metrics = {
            "policy_loss": -surrogate.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "approx_kl": (ratio - 1.0) - log_ratio,  # never negative; http://joschu.net/blog/kl-approx.html
            "clip_fraction": ((ratio - 1.0).abs() > clip_range).float(),
        }
    return PPOLoss(loss, metrics)


class ActorCriticPolicy(Policy):
    """Draws from the actor's distribution; without a generator it takes the likeliest action."""

    network: ActorCritic

    def __init__(self, network: ActorCritic, spec: SpaceSpec) -> None:
        super().__init__(network, spec)
        self._output: Callable[[Array], Array] | None = None

    def act(
        self,
        obs: Array,
        carry: Carry,
        *,
        rng: np.random.Generator | None = None,
        env_steps: int = 0,
        action_mask: NDArray[np.bool_] | None = None,
    ) -> PolicyOutput:
        if self._output is None:
            self._output = self.network.numpy_action_output()
        return choose(self.network.head, self._output(obs), carry, rng, action_mask)

    def parameters_moved(self) -> None:
        self._output = None

    def export_module(self) -> ExportModule:
        return ActorModule(self.network, self.spec)


def choose(
    head: ActionHead,
    output: Array,
    carry: Carry,
    rng: np.random.Generator | None,
    action_mask: NDArray[np.bool_] | None,
) -> PolicyOutput:
    """Actions drawn from the network's output, or the likeliest ones; the mask goes along for the recorder."""
    extras = {}
    if action_mask is not None:
        output, extras = np.where(action_mask, output, FORBIDDEN), {"action_mask": action_mask}
    return PolicyOutput(head.mode(output) if rng is None else head.sample(output, rng), carry, extras)


class ActorModule(ExportModule):
    """Raw observations -> the likeliest actions in the environment's terms, and the logits or means behind them."""

    def __init__(self, network: ActorCritic, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec
        self.output_names = ("action", network.head.output_name)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        output = self.network.action_output(encode_observation(obs, self.spec))
        return self.network.head.env_mode(output), output


class Evaluated(NamedTuple):
    """What the network says of some steps, each (step,)."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Phase:
    """One training phase of PPO over a rollout of independent steps: what to gather and how to run the network on it.

    Steps are numbered time-major: step t of environment i is t * envs + i.
    """

    network: ActorCritic

    def __init__(self, network: Any, rollout: Rollout) -> None:
        self.network = network
        self.rollout = rollout
        self.device = next(network.parameters()).device
        self.prepared = self.prepare(flat(rollout.obs))
        self.action = self.tensor(flat(rollout.action))
        self.mask = None if rollout.action_mask is None else self.tensor(flat(rollout.action_mask))

    def tensors(self) -> list[Tensor]:
        """What ``evaluate`` gathers from."""
        return [self.prepared, self.action] if self.mask is None else [self.prepared, self.action, self.mask]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Phase:
        """The same with others in place of ``tensors()``."""
        phase = copy.copy(self)
        phase.prepared, phase.action, *mask = tensors
        phase.mask = mask[0] if mask else None
        return phase

    def tensor(self, array: Array) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def prepare(self, obs: Array) -> Tensor:
        prepared: Tensor = self.network.encoder.prepare(self.tensor(obs))
        return prepared

    def minibatches(self, count: int, rng: np.random.Generator) -> Sequence[Any]:
        """Every step once, in a new order, in ``count`` parts that differ in size by one at the most."""
        order = torch.from_numpy(rng.permutation(len(self.action))).to(self.device)
        return order.tensor_split(min(count, len(order)))

    def steps(self, minibatch: Any) -> Tensor:
        """The numbers of the steps of a minibatch."""
        steps: Tensor = minibatch
        return steps

    def evaluate(self, minibatch: Any) -> Evaluated:
        """The network now, on the steps of a minibatch."""
        output, value = self.network(self.prepared.index_select(0, minibatch))
        return self.judge(minibatch, output, value)

    def judge(self, steps: Tensor, output: Tensor, value: Tensor) -> Evaluated:
        """The actions taken at these steps under the network's output for them."""
        if self.mask is not None:
            output = output.where(self.mask.index_select(0, steps), FORBIDDEN)
        return Evaluated(*self.network.head.log_prob_and_entropy(output, self.action.index_select(0, steps)), value)

    def next_value(self, time: Array, env: Array) -> Tensor:
        """The value of the true next observation at these steps."""
        return self.network.value(self.prepare(self.rollout.next_obs[time, env]))


def flat(array: Array) -> Array:
    """(time, env, ...) -> (time * env, ...)."""
    return array.reshape(-1, *array.shape[2:])


class PPO(OnPolicyAlgorithm):
    """Proximal policy optimisation."""

    config_class: ClassVar[type[OnPolicyConfig]] = PPOConfig
    config: OnPolicyConfig

    def __init__(self, policy: Policy, config: OnPolicyConfig, streams: RandomStreams) -> None:
        super().__init__(policy, config)
        self.config = config
        self.optimizer = FlatAdam(policy.network, eps=config.adam_eps, max_norm=config.max_grad_norm)
        policy.parameters_moved()
        final_clip = config.clip_range if config.final_clip_range is None else config.final_clip_range
        self.clip_range = LinearSchedule(config.clip_range, final_clip, config.clip_range_decay_steps)
        self.return_scale = ReturnScale(config.gamma) if config.normalize_rewards else None
        self._order = streams["minibatch"]
        self.updates = 0
        self._compiled: CompiledStep | None = None

    @classmethod
    def make_policy(cls, config: Any, spec: SpaceSpec, generator: torch.Generator) -> Policy:
        network = ActorCritic(spec, config.hidden_sizes, generator, **network_options(config))
        return ActorCriticPolicy(network, spec)

    def update(self, rollout: Rollout, env_steps: int = 0) -> UpdateResult:
        config = self.config
        phase = self.begin_phase(rollout)
        minibatches = phase.minibatches(config.n_minibatches, self._order)
        old_log_prob, old_value = self._evaluate_old(phase, minibatches)
        advantage, target = self._targets(phase, old_value.cpu().numpy().reshape(rollout.reward.shape))
        columns = torch.stack([old_log_prob, old_value, *(phase.tensor(flat(array)) for array in (advantage, target))], 1)
        learning_rate, clip_range = self.learning_rate(env_steps), self.clip_range(env_steps)
        samples: dict[str, list[Tensor]] = {}
        for epoch in range(config.n_epochs):
            if epoch:
                minibatches = phase.minibatches(config.n_minibatches, self._order)
            for minibatch in minibatches:
                if self._compiled is not None:
                    tensors = [columns, *phase.tensors(), minibatch]
                    measured = self._compiled(tensors, learning_rate=learning_rate, clip_range=clip_range)
                else:
                    output = self._minibatch_loss(phase, minibatch, columns, clip_range)
                    if config.target_kl is not None and output.metrics["approx_kl"].mean() > config.target_kl:
                        break
                    self.optimizer.step(output.loss, learning_rate)
                    measured = {"loss": output.loss.detach(), **output.metrics}
                self.updates += 1
                for name, sample in measured.items():
                    samples.setdefault(name, []).append(sample)
            else:
                continue
            break
        self.policy.network.encoder.observe(flat(rollout.obs))  # type: ignore[operator,union-attr]
        measured = {name: torch.cat(parts) for name, parts in samples.items()}
        unexplained = torch.as_tensor(np.var(advantage) / max(float(np.var(target)), 1e-12))
        return UpdateResult({**measured, "explained_variance": 1.0 - unexplained})

    def why_not_compiled(self) -> str | None:
        return None if self.config.target_kl is None else "target_kl decides between a loss and its step"

    def compile_repaid_after(self) -> int:
        return 20_000

    def compile(self, source: Any) -> None:
        phase = self.begin_phase(source.whole())
        steps = len(phase.action)
        columns = torch.zeros(steps, 4, device=phase.device)

        def losses(tensors: Sequence[Tensor], settings: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
            columns, *of_phase, minibatch = tensors
            return self._minibatch_loss(phase.with_tensors(of_phase), minibatch, columns, settings["clip_range"].float())

        stage, networks = Stage("loss", self.optimizer, losses), [(self.policy.network, self.optimizer.parameters)]
        compiled = CompiledStep([stage], networks, settings=["clip_range"])
        for size in {steps // self.config.n_minibatches, -(-steps // self.config.n_minibatches)}:
            compiled.prepare([columns, *phase.tensors(), torch.arange(size, device=phase.device)])
        self._compiled = compiled

    def begin_phase(self, rollout: Rollout) -> Phase:
        return Phase(self.policy.network, rollout)

    def _evaluate_old(self, phase: Phase, minibatches: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of all steps under the policy that acted.

        Acting goes through numpy, which differs from torch in the last bits, and so do two torch passes over batches of
        different shapes or with and without a graph. This pass is therefore shaped as the first epoch's will be: the
        first minibatch's ratios are exactly 1.
        """
        old = torch.empty(2, len(phase.action), device=phase.device)
        for minibatch in minibatches:
            evaluated = phase.evaluate(minibatch)
            steps = phase.steps(minibatch)
            old[0, steps], old[1, steps] = evaluated.log_prob.detach(), evaluated.value.detach()
        return old[0], old[1]

    def _targets(self, phase: Phase, value: Array) -> tuple[Array, Array]:
        """Advantages and value targets, (time, env) each.

        Truncation and the end of the rollout bootstrap from the value of the true next observation; termination does not.
        """
        rollout, gamma = phase.rollout, self.config.gamma
        reward = rollout.reward if self.return_scale is None else self.return_scale.scale(rollout.reward, rollout.ended)
        next_value = np.zeros_like(value)
        next_value[:-1] = value[1:]
        last = np.arange(len(value)) == len(value) - 1
        time, env = np.nonzero((rollout.truncated | last[:, None]) & ~rollout.terminated)
        if len(time):
            with torch.no_grad():
                next_value[time, env] = phase.next_value(time, env).cpu().numpy()
        discount = (gamma * ~rollout.terminated).astype(np.float32)
        trace = (gamma * self.config.gae_lambda * ~rollout.ended).astype(np.float32)
        advantage = gae(reward, value, next_value, discount, trace)
        return advantage, advantage + value

    def _minibatch_loss(self, phase: Phase, minibatch: Any, columns: Tensor, clip_range: float | Tensor) -> PPOLoss:
        config = self.config
        now = phase.evaluate(minibatch)
        old_log_prob, old_value, advantage, target = columns.index_select(0, phase.steps(minibatch)).unbind(1)
        if config.normalize_advantage:
            std, mean = torch.std_mean(advantage, correction=0)
            advantage = (advantage - mean) / (std + 1e-8)
        return ppo_loss(
            now.log_prob,
            old_log_prob,
            advantage,
            now.value,
            target,
            now.entropy,
            clip_range=clip_range,
            value_coef=config.value_coef,
            entropy_coef=config.entropy_coef,
            clip_value=config.clip_value,
            old_value=old_value,
        )

    def schedule_values(self, env_steps: int) -> dict[str, float]:
        return {**super().schedule_values(env_steps), "clip_range": self.clip_range(env_steps)}

    def state_dict(self) -> State:
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        return {"optimizer": self.optimizer.state_dict(), "updates": self.updates, "return_scale": scale}

    def load_state_dict(self, state: State) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])
        if self.return_scale is not None:
            self.return_scale.load_state_dict(state["return_scale"])


def network_options(config: OnPolicyConfig) -> dict[str, Any]:
    """The settings that both actor-critic networks take by name."""
    return {
        "activation": config.activation,
        "normalize": config.normalize_observations,
        "initial_log_std": config.initial_log_std,
        "cnn_layers": config.cnn_layers,
        "cnn_features": config.cnn_features,
    }
