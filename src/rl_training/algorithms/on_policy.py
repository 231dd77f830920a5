"""Shared by the on-policy actor-critics: acting, advantages, and one training phase over a rollout.

Steps of a rollout are numbered time-major: step t of environment i is t * envs + i.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.algorithms.base import OnPolicyAlgorithm
from rl_training.algorithms.config import ActorCriticConfig, ScheduleConfig
from rl_training.algorithms.optimizer import make_optimizer
from rl_training.algorithms.policy import ActInput, ExportModule, Observations, Policy
from rl_training.algorithms.return_scale import ReturnScale
from rl_training.algorithms.update import Known, Stage, StageLoss, Update
from rl_training.data import Rollout
from rl_training.models import ActorCritic, EncoderConfig, RecurrentActorCritic
from rl_training.models.action_head import FORBIDDEN, ActionHead
from rl_training.models.interfaces import ActionNetwork
from rl_training.models.observation import encode_observation
from rl_training.schedules import Schedule
from rl_training.types import ActionKind, Array, Carry, ObservationKind, PolicyOutput, SpaceSpec, State, UpdateResult

__all__ = ["gae"]


ActorCriticConfigT = TypeVar("ActorCriticConfigT", bound=ActorCriticConfig)


def gae(reward: Array, value: Array, next_value: Array, discount: Array, trace: Array) -> Array:
    """Generalised advantage estimates (Schulman et al. 2015, arXiv:1506.02438), each array (time, env).

    ``next_value`` is the value of the true next observation; ``discount`` is gamma, or 0 where the episode terminated;
    ``trace`` is gamma * lambda, or 0 where the episode terminated or was truncated.
    """
    assert reward.shape == value.shape == next_value.shape == discount.shape == trace.shape
    advantage: Array = reward + discount * next_value - value
    later = advantage[-1]
    for now, share in zip(advantage[-2::-1], trace[-2::-1], strict=True):  # rows, which are views
        now += share * later
        later = now
    return advantage


class StochasticPolicy(Policy):
    """Samples from the actor's distribution. The deterministic action is its mode."""

    network: ActionNetwork | RecurrentActorCritic


class ActorCriticPolicy(StochasticPolicy):
    """The policy of a network without memory."""

    network: ActionNetwork

    def __init__(self, network: ActionNetwork, spec: SpaceSpec) -> None:
        super().__init__(network, spec)
        self._head = network.head  # kept here: a lookup in a module takes as long as a small layer
        self._output: Callable[[Array], Array] | None = None

    def choose(self, given: ActInput) -> PolicyOutput:
        if self._output is None:
            self._output = self.network.numpy_action_output()
        return choose_actions(self._head, self._output(given.obs), given.carry, given)

    def parameters_moved(self) -> None:
        self._output = None

    def export_module(self) -> ExportModule:
        return ActorModule(self.network, self.spec)


def choose_actions(head: ActionHead, output: Array, carry: Carry, given: ActInput) -> PolicyOutput:
    """Samples actions from the network's output, or takes its mode; returns the mask too, for the recorder."""
    extras = {}
    if given.action_mask is not None:
        output, extras = np.where(given.action_mask, output, FORBIDDEN), {"action_mask": given.action_mask}
    return PolicyOutput(head.mode(output) if given.rng is None else head.sample(output, given.rng), carry, extras)


class ActorModule(ExportModule):
    """Raw observations -> the most likely environment actions, and the logits or means they come from."""

    def __init__(self, network: ActionNetwork, spec: SpaceSpec) -> None:
        super().__init__()
        self.network = network
        self.spec = spec
        self.output_names = ("action", network.head.output_name)

    def forward(self, obs: Observations) -> tuple[Tensor, Tensor]:
        output = self.network.action_output(encode_observation(obs, self.spec.observation))
        return self.network.head.env_mode(output), output


class Evaluated(NamedTuple):
    """The network's results for some steps, each (step,)."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Recorded(NamedTuple):
    """Values of some steps that stay fixed during a phase, each (step,)."""

    log_prob: Tensor  # under the policy that acted
    value: Tensor  # estimated by the value function at that time
    advantage: Tensor
    target: Tensor  # for the value function


class MinibatchInput(NamedTuple):
    """The tensors of a phase, and the steps that one gradient step uses."""

    recorded: Tensor  # (step, 4) the fields of ``Recorded``
    prepared: Tensor  # (step, ...) observations
    action: Tensor  # (step, ...)
    mask: Tensor | None  # (step, action) the allowed actions
    minibatch: Any  # indices of steps; a recurrent phase has its own type
    evaluated: Evaluated | None = None  # by the network as it is now, if that is known already; a compiled update ignores it


class Phase:
    """One training phase over a rollout of independent steps: gathers minibatches and runs the network on them."""

    network: ActorCritic | RecurrentActorCritic

    def __init__(self, network: ActorCritic | RecurrentActorCritic, rollout: Rollout) -> None:
        self.network = network
        self.rollout = rollout
        self.device = next(network.parameters()).device
        self.prepared = self.prepare(flat(rollout.obs))
        self.action = self.tensor(flat(rollout.action))
        self.mask = None if rollout.action_mask is None else self.tensor(flat(rollout.action_mask))
        self.recorded = torch.zeros(len(self.action), len(Recorded._fields), device=self.device)
        #: the indices of the steps to learn from; None: all of them, as no environment has spent some on a reset
        self._learned = None if rollout.present is None else np.flatnonzero(flat(rollout.present))

    def learned(self, array: Array) -> Array:
        """The values (time, env, ...) of the steps to learn from, (step, ...)."""
        return flat(array) if self._learned is None else flat(array)[self._learned]

    def tensor(self, array: Array) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def prepare(self, obs: Array) -> Tensor:
        return self.network.encoder.prepare(self.tensor(obs))

    def record(self, log_prob: Tensor, value: Tensor, advantage: Array, target: Array) -> None:
        """Sets the columns of ``recorded``."""
        columns = (self.tensor(flat(array)) for array in (advantage, target))
        self.recorded = torch.stack([log_prob, value, *columns], 1)

    def inputs(self, minibatch: Any, evaluated: Evaluated | None = None) -> MinibatchInput:
        return MinibatchInput(self.recorded, self.prepared, self.action, self.mask, minibatch, evaluated)

    def minibatches(self, count: int, rng: np.random.Generator) -> Sequence[Any]:
        """Every step once, in random order, in ``count`` parts whose sizes differ by at most one."""
        shuffled = rng.permutation(len(self.action) if self._learned is None else self._learned)
        return torch.from_numpy(shuffled).to(self.device).tensor_split(min(count, len(shuffled)))

    def steps(self, minibatch: Any) -> Tensor:
        """The indices of the steps in a minibatch."""
        steps: Tensor = minibatch
        return steps

    def evaluate(self, given: MinibatchInput) -> Evaluated:
        """Runs the current network on the steps of a minibatch."""
        output, value = self.network(given.prepared.index_select(0, given.minibatch))
        return self.score(given, given.minibatch, output, value)

    def score(self, given: MinibatchInput, steps: Tensor, output: Tensor, value: Tensor) -> Evaluated:
        """Evaluates the actions taken at these steps under the network's output for them."""
        if given.mask is not None:
            output = output.where(given.mask.index_select(0, steps), FORBIDDEN)
        action = given.action.index_select(0, steps)
        return Evaluated(*self.network.head.log_prob_and_entropy(output, action), value)

    def next_value(self, time: NDArray[np.int64], env: NDArray[np.int64]) -> Tensor:
        """The value of the true next observation at these steps."""
        assert isinstance(self.network, ActorCritic)
        return self.network.value(self.prepare(self.rollout.next_obs[time, env]))


def flat(array: Array) -> Array:
    """(time, env, ...) -> (time * env, ...)."""
    return array.reshape(-1, *array.shape[2:])


class ActorCriticAlgorithm(OnPolicyAlgorithm[ActorCriticConfigT]):
    """An actor and a critic that learn from rollouts: one gradient step over the whole rollout, or several passes over it in
    minibatches (``config.passes``). A subclass adds its ``loss``."""

    observations: ClassVar[tuple[ObservationKind, ...]] = ("vector", "image", "mixed")
    actions: ClassVar[tuple[ActionKind, ...]] = ("discrete", "multi_discrete", "continuous", "unbounded")
    uses_old_policy: ClassVar[bool] = True  # whether ``loss`` reads ``recorded.log_prob``
    policy: StochasticPolicy

    def build(self) -> None:
        super().build()
        config = self.config
        self.optimizer = make_optimizer(self.policy.network, config, max_norm=config.max_grad_norm)
        self.return_scale = ReturnScale(config.gamma) if config.normalize_rewards else None
        self.epochs, self.minibatches = config.passes()
        self.phase: Phase | None = None  # the current one

    @classmethod
    def make_policy(cls, config: ActorCriticConfigT, spec: SpaceSpec, generator: torch.Generator) -> StochasticPolicy:
        return ActorCriticPolicy(ActorCritic(spec, config.hidden_sizes, generator, **network_options(config)), spec)

    @abstractmethod
    def loss(self, now: Evaluated, recorded: Recorded, known: Known) -> StageLoss:
        """The per-sample loss of some steps."""

    def schedules(self) -> dict[str, Schedule]:
        """Scheduled values that the loss takes by name."""
        entropy = self.config.entropy_coef
        scheduled = {"entropy_coef": entropy.schedule()} if isinstance(entropy, ScheduleConfig) else {}
        return {"learning_rate": self.learning_rate, **scheduled}

    def entropy_coef(self, known: Known) -> float | Tensor:
        """The weight of the entropy bonus in this update."""
        weight: float | Tensor = known.get("entropy_coef", self.config.entropy_coef)
        return weight

    def make_update(self) -> Update[MinibatchInput]:
        return Update([self.make_stage()], rng=self.streams["noise"], schedules=self.schedules())

    def make_stage(self) -> Stage[MinibatchInput]:
        """The only stage of an update."""
        return Stage("loss", self.optimizer, self.minibatch_loss)

    def update(self, rollout: Rollout, env_steps: int = 0) -> UpdateResult:
        phase = self.phase = self.begin_phase(rollout)
        first = phase.minibatches(self.minibatches, self.streams["minibatch"])
        old_log_prob, old_value, evaluated = self._evaluate_old(phase, first)
        advantage, target = self.targets(phase, old_value.cpu().numpy().reshape(rollout.reward.shape))
        phase.record(old_log_prob, old_value, advantage, target)
        samples: dict[str, list[Tensor]] = {}
        for minibatch in self._passes(phase, first):
            outcome = self.updater(phase.inputs(minibatch, evaluated), env_steps)
            evaluated = None  # the network has changed
            if outcome is None:
                break
            for name, sample in outcome.metrics.items():
                samples.setdefault(name, []).append(sample)
        self.policy.network.encoder.observe(phase.learned(rollout.obs))  # type: ignore[operator,union-attr]
        measured = {name: torch.cat([part.flatten() for part in parts]) for name, parts in samples.items()}
        explained, wanted = phase.learned(advantage), phase.learned(target)
        with np.errstate(over="ignore", invalid="ignore"):  # divergence is noticed by the loss
            unexplained = torch.as_tensor(np.var(explained) / max(float(np.var(wanted)), 1e-12))
        return UpdateResult({**measured, "explained_variance": 1.0 - unexplained})

    def _passes(self, phase: Phase, first: Sequence[Any]) -> Iterator[Any]:
        yield from first
        for _ in range(1, self.epochs):
            yield from phase.minibatches(self.minibatches, self.streams["minibatch"])

    def compile(self, example: Rollout) -> None:
        phase = self.phase = self.begin_phase(example)
        steps = len(phase.action)
        sizes = {steps // self.minibatches, -(-steps // self.minibatches)}
        self.updater.compile(*(phase.inputs(torch.arange(size, device=phase.device)) for size in sizes))

    def rows_per_update(self, num_envs: int) -> int:
        return self.config.n_steps * num_envs // self.minibatches

    def begin_phase(self, rollout: Rollout) -> Phase:
        network = self.policy.network
        assert isinstance(network, ActorCritic)
        return Phase(network, rollout)

    def _evaluate_old(self, phase: Phase, minibatches: Sequence[Any]) -> tuple[Tensor, Tensor, Evaluated | None]:
        """Log-probabilities and values of all steps under the policy that acted. Also returns the first minibatch's results
        with their graph, if there is one: the first gradient step then need not repeat that pass.

        Acting uses numpy, whose results differ from torch's in the last bits. Two torch passes also differ if their batches
        have different shapes or only one of them records a graph. This pass therefore uses the minibatches of the first
        epoch, so that the ratios in the first minibatch are exactly 1.
        """
        old = torch.zeros(2, len(phase.action), device=phase.device)
        first: Evaluated | None = None
        for minibatch in minibatches:
            with torch.set_grad_enabled(self.uses_old_policy):  # without the ratio, no graph is needed
                evaluated = phase.evaluate(phase.inputs(minibatch))
            steps = phase.steps(minibatch)
            old[0, steps], old[1, steps] = evaluated.log_prob.detach(), evaluated.value.detach()
            first = first or evaluated
        return old[0], old[1], first if self.uses_old_policy else None

    def targets(self, phase: Phase, value: Array) -> tuple[Array, Array]:
        """Advantages and value targets, (time, env) each, from the values of the rollout's steps.

        At a truncation and at the end of the rollout they bootstrap from the true next observation; at a termination they do
        not bootstrap.
        """
        rollout, gamma = phase.rollout, self.config.gamma
        reward = rollout.reward
        if self.return_scale is not None:
            reward = self.return_scale.scale(reward, rollout.ended, rollout.present)
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

    def minibatch_loss(self, given: MinibatchInput, known: Known) -> StageLoss:
        """``loss`` on the steps of a minibatch, with standardised advantages if configured."""
        phase = self.phase
        assert phase is not None
        now = given.evaluated or phase.evaluate(given)
        recorded = Recorded(*given.recorded.index_select(0, phase.steps(given.minibatch)).unbind(1))
        if self.config.normalize_advantage:
            std, mean = torch.std_mean(recorded.advantage, correction=0)
            recorded = recorded._replace(advantage=(recorded.advantage - mean) / (std + 1e-8))
        return self.loss(now, recorded, known)

    def state_dict(self) -> State:
        scale = None if self.return_scale is None else self.return_scale.state_dict()
        return {**super().state_dict(), "return_scale": scale}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self.return_scale is not None:
            self.return_scale.load_state_dict(state["return_scale"])


def network_options(config: ActorCriticConfig) -> dict[str, Any]:
    """The keyword arguments that both actor-critic networks take from the config."""
    return {
        "encoder": EncoderConfig(
            cnn=config.cnn,
            cnn_layers=config.cnn_layers,
            cnn_features=config.cnn_features,
            standardise=config.normalize_observations,
            factors=config.observation_scale,
            orthogonal=config.init == "orthogonal",
            custom=config.custom_network(),
        ),
        "style": config.style(),
        "initial_log_std": config.initial_log_std,
    }
