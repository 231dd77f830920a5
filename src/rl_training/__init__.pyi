"""Reinforcement learning that is provably right, resumes bit for bit, and is fast."""
# Written by `make stubs` from the models of the settings. Algorithms of other packages are typed as ManagedAlgorithm.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rl_training.api import Callback as Callback
from rl_training.api import ManagedAlgorithm as ManagedAlgorithm
from rl_training.api import load_agent as load_agent
from rl_training.api import load_exported as load_exported
from rl_training.api import managed as managed
from rl_training.api.environments import EnvLike

__version__: str
__all__: list[str]

def __getattr__(name: str) -> type[ManagedAlgorithm]: ...

class A2C(ManagedAlgorithm):
    """Advantage actor-critic: one gradient step on each short rollout. ``rl-training show a2c`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0007, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-05, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 0.5,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'tanh', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'orthogonal', network: Any = None, network_kwargs: Mapping[str, Any] = {}, n_steps:
        int = 5, normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn:
        Literal["nature", "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4,
        2), (64, 3, 1)), gae_lambda: float = 1.0, entropy_coef: float | Mapping[str, Any] = 0.0, value_coef: float = 0.5,
        normalize_advantage: bool = False, normalize_rewards: bool = False, hidden_sizes: Sequence[int] = (64, 64),
        initial_log_std: float = 0.0, cnn_features: int = 512, env_kwargs: Mapping[str, Any] = {}, env_workers:
        Literal["inline", "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers:
        Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu',
        compile: Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors:
        Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] =
        {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class C51(ManagedAlgorithm):
    """A categorical distribution of the return, with DQN's options; with all of them it is Rainbow. ``rl-training show c51`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 64, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = False, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, hidden_sizes:
        Sequence[int] = (64, 64), dueling: bool = False, noisy: bool = False, prioritized: bool = False, priority_alpha: float
        = 0.5, priority_beta: float = 0.4, priority_beta_steps: int = 50000, num_atoms: int = 51, v_min: float = -10.0, v_max:
        float = 10.0, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline',
        env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int =
        1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto',
        threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {},
        stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path |
        None = None, overwrite: bool = False
    ) -> None: ...

class DDPG(ManagedAlgorithm):
    """A deterministic actor and one critic; TD3 without its three additions. ``rl-training show ddpg`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 1000000, batch_size: int = 256, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.005, target_update_interval: int =
        1, actor_update_interval: int = 1, normalize_observations: bool = False, observation_scale: Sequence[float] | None =
        None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8,
        4), (64, 4, 2), (64, 3, 1)), cnn_features: int = 512, n_critics: int = 1, exploration_noise: float = 0.1,
        target_noise: float = 0.0, noise_clip: float = 0.5, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline",
        "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str,
        Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile:
        Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any]
        = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log:
        Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class DiscreteSAC(ManagedAlgorithm):
    """Soft actor-critic for discrete actions, with twin critics and a learned or fixed temperature. ``rl-training show discrete_sac`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 1000000, batch_size: int = 256, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.005, target_update_interval: int =
        1, actor_update_interval: int = 1, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: float | None = None,
        normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn: Literal["nature",
        "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
        cnn_features: int = 512, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline',
        env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int =
        1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto',
        threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {},
        stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path |
        None = None, overwrite: bool = False
    ) -> None: ...

class DQN(ManagedAlgorithm):
    """Deep Q-learning; double, dueling, noisy, n-step and prioritised as options. ``rl-training show dqn`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 64, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = False, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, hidden_sizes:
        Sequence[int] = (64, 64), dueling: bool = False, noisy: bool = False, prioritized: bool = False, priority_alpha: float
        = 0.5, priority_beta: float = 0.4, priority_beta_steps: int = 50000, value_range: Sequence[float] | None = None,
        huber_delta: float = 1.0, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline',
        env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int =
        1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto',
        threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {},
        stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path |
        None = None, overwrite: bool = False
    ) -> None: ...

class DrQ(ManagedAlgorithm):
    """SAC on images with random shifts; optionally with the paper's encoder and averages over shifts. ``rl-training show drq`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'orthogonal', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 128, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 3,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.01, target_update_interval: int =
        1, actor_update_interval: int = 1, alpha: float = 0.1, learn_alpha: bool = False, target_entropy: float | None = None,
        shift_pad: int = 4, cnn_layers: Sequence[Sequence[int]] | None = None, cnn_features: int | None = None, encoder:
        Literal["nature", "paper"] = 'nature', target_shifts: int = 1, loss_shifts: int = 1, env_kwargs: Mapping[str, Any] =
        {}, env_workers: Literal["inline", "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool =
        False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000,
        device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None,
        collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint:
        Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class DRQN(ManagedAlgorithm):
    """Deep Q-learning with an LSTM, on replayed sequences. ``rl-training show drqn`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 32, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = False, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, value_range:
        Sequence[float] | None = None, huber_delta: float = 1.0, trace_lambda: float = 0.0, sequence_length: int = 20,
        burn_in: int = 0, overlap: int = 0, encoder_sizes: Sequence[int] = (64,), recurrent_cell: Literal["lstm", "gru"] =
        'lstm', lstm_size: int = 64, lstm_layers: int = 1, forget_bias: float = 1.0, hidden_sizes: Sequence[int] = (64,),
        shortcut: bool = False, loss_over_time: Literal["mean", "sum"] = 'mean', env_kwargs: Mapping[str, Any] = {},
        env_workers: Literal["inline", "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False,
        wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device:
        str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None,
        collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint:
        Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class DrQv2(ManagedAlgorithm):
    """A deterministic actor with scheduled noise and n-step targets, on images with random shifts. ``rl-training show drqv2`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'orthogonal', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 256, learning_starts: int = 2000, train_freq: int = 2, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 3, frame_stack: int = 3,
        hidden_sizes: Sequence[int] = (1024, 1024), reward_scale: float = 1.0, tau: float = 0.01, target_update_interval: int
        = 1, actor_update_interval: int = 1, shift_pad: int = 4, cnn_layers: Sequence[Sequence[int]] | None = None,
        cnn_features: int | None = None, initial_noise: float = 1.0, final_noise: float = 0.1, noise_steps: int = 500000,
        noise_clip: float = 0.3, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline',
        env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int =
        1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto',
        threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {},
        stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path |
        None = None, overwrite: bool = False
    ) -> None: ...

class IQN(ManagedAlgorithm):
    """Implicit quantile networks: quantiles of the return at random levels, with DQN's options. ``rl-training show iqn`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 64, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = False, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, hidden_sizes:
        Sequence[int] = (64, 64), dueling: bool = False, noisy: bool = False, prioritized: bool = False, priority_alpha: float
        = 0.5, priority_beta: float = 0.4, priority_beta_steps: int = 50000, value_range: Sequence[float] | None = None,
        num_quantiles: int = 32, num_target_quantiles: int = 32, num_acting_quantiles: int = 32, num_cosines: int = 64, kappa:
        float = 1.0, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline', env_timeout:
        float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int
        = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto', threads: int =
        1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str,
        Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None,
        overwrite: bool = False
    ) -> None: ...

class PPO(ManagedAlgorithm):
    """Proximal policy optimisation, optionally with normalisation, value clipping and early stopping on KL. ``rl-training show ppo`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-05, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 0.5,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'tanh', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'orthogonal', network: Any = None, network_kwargs: Mapping[str, Any] = {}, n_steps:
        int = 128, normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn:
        Literal["nature", "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4,
        2), (64, 3, 1)), gae_lambda: float = 0.95, entropy_coef: float | Mapping[str, Any] = 0.0, value_coef: float = 0.5,
        normalize_advantage: bool = True, normalize_rewards: bool = False, hidden_sizes: Sequence[int] = (64, 64),
        initial_log_std: float = 0.0, cnn_features: int = 512, n_epochs: int = 4, n_minibatches: int = 4, clip_range: float |
        Mapping[str, Any] = 0.2, final_clip_range: float | None = None, clip_range_decay_steps: int = 0, clip_value: float |
        None = None, target_kl: float | None = None, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline",
        "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str,
        Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile:
        Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any]
        = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log:
        Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class QRDQN(ManagedAlgorithm):
    """Quantile regression of the return, with DQN's options. ``rl-training show qr_dqn`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 64, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = False, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, hidden_sizes:
        Sequence[int] = (64, 64), dueling: bool = False, noisy: bool = False, prioritized: bool = False, priority_alpha: float
        = 0.5, priority_beta: float = 0.4, priority_beta_steps: int = 50000, value_range: Sequence[float] | None = None,
        num_quantiles: int = 51, kappa: float = 1.0, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline",
        "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str,
        Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile:
        Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any]
        = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log:
        Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class R2D2(ManagedAlgorithm):
    """DRQN with prioritised sequences and n-step targets; optionally with rescaled values, previous inputs and more. ``rl-training show r2d2`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.001, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 10.0,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 100000, batch_size: int = 32, learning_starts: int = 1000, train_freq: int = 1, gradient_steps: int
        = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 5, frame_stack: int = 1,
        exploration_initial_eps: float = 1.0, exploration_final_eps: float = 0.05, exploration_steps: int = 10000, epsilon:
        float | Mapping[str, Any] | None = None, epsilon_spread: float = 0.0, normalize_observations: bool = False,
        observation_scale: Sequence[float] | None = None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature',
        cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)), double: bool = True, tau: float = 1.0,
        target_update_interval: int = 500, average_updates: int = 0, initial_value: float | None = None, value_range:
        Sequence[float] | None = None, huber_delta: float = 1.0, trace_lambda: float = 0.0, sequence_length: int = 20,
        burn_in: int = 0, overlap: int = 0, encoder_sizes: Sequence[int] = (64,), recurrent_cell: Literal["lstm", "gru"] =
        'lstm', lstm_size: int = 64, lstm_layers: int = 1, forget_bias: float = 1.0, hidden_sizes: Sequence[int] = (64,),
        shortcut: bool = False, loss_over_time: Literal["mean", "sum"] = 'mean', priority_alpha: float = 0.9, priority_beta:
        float = 0.6, priority_beta_steps: int = 0, priority_eta: float = 0.9, rescale_values: bool = False, previous_inputs:
        bool = False, dueling: bool = False, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"]
        = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (),
        num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on",
        "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval:
        Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {},
        init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class RecurrentPPO(ManagedAlgorithm):
    """PPO with an LSTM, for tasks that need memory. ``rl-training show recurrent_ppo`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-05, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = 0.5,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'tanh', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'orthogonal', network: Any = None, network_kwargs: Mapping[str, Any] = {}, n_steps:
        int = 128, normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn:
        Literal["nature", "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4,
        2), (64, 3, 1)), gae_lambda: float = 0.95, entropy_coef: float | Mapping[str, Any] = 0.0, value_coef: float = 0.5,
        normalize_advantage: bool = True, normalize_rewards: bool = False, hidden_sizes: Sequence[int] = (64,),
        initial_log_std: float = 0.0, cnn_features: int = 512, n_epochs: int = 4, n_minibatches: int = 4, clip_range: float |
        Mapping[str, Any] = 0.2, final_clip_range: float | None = None, clip_range_decay_steps: int = 0, clip_value: float |
        None = None, target_kl: float | None = None, recurrent_cell: Literal["lstm", "gru"] = 'lstm', lstm_size: int = 64,
        lstm_layers: int = 1, forget_bias: float = 0.0, shared_lstm: bool = False, sequence_length: int | None = None,
        env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline', env_timeout: float | None
        = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int = 0,
        total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto', threads: int = 1,
        output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str,
        Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None,
        overwrite: bool = False
    ) -> None: ...

class SAC(ManagedAlgorithm):
    """Soft actor-critic with twin critics, and a learned or fixed temperature. ``rl-training show sac`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 1000000, batch_size: int = 256, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.005, target_update_interval: int =
        1, actor_update_interval: int = 1, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: float | None = None,
        normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn: Literal["nature",
        "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
        cnn_features: int = 512, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline',
        env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int =
        1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto',
        threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {},
        stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path |
        None = None, overwrite: bool = False
    ) -> None: ...

class TD3(ManagedAlgorithm):
    """A deterministic actor, updated less often than its twin critics, with smoothed targets. ``rl-training show td3`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 1000000, batch_size: int = 256, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.005, target_update_interval: int =
        2, actor_update_interval: int = 2, normalize_observations: bool = False, observation_scale: Sequence[float] | None =
        None, cnn: Literal["nature", "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8,
        4), (64, 4, 2), (64, 3, 1)), cnn_features: int = 512, n_critics: int = 2, exploration_noise: float = 0.1,
        target_noise: float = 0.2, noise_clip: float = 0.5, env_kwargs: Mapping[str, Any] = {}, env_workers: Literal["inline",
        "subprocess"] = 'inline', env_timeout: float | None = None, env_fresh: bool = False, wrappers: Sequence[Mapping[str,
        Any]] = (), num_envs: int = 1, seed: int = 0, total_timesteps: int = 50000, device: str = 'cpu', compile:
        Literal["auto", "on", "off"] = 'auto', threads: int = 1, output_dir: str | None = None, collectors: Mapping[str, Any]
        = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str, Any] = {}, checkpoint: Mapping[str, Any] = {}, log:
        Mapping[str, Any] = {}, init_from: str | Path | None = None, overwrite: bool = False
    ) -> None: ...

class TQC(ManagedAlgorithm):
    """SAC with several quantile critics, whose largest quantiles are left out of the targets. ``rl-training show tqc`` prints what the settings mean."""

    def __init__(
        self, env: EnvLike, *, gamma: float = 0.99, learning_rate: float | Mapping[str, Any] = 0.0003, final_learning_rate:
        float | None = None, learning_rate_decay_steps: int = 0, optimizer: Literal["adam", "adamw", "rmsprop"] = 'adam',
        adam_eps: float = 1e-08, adam_betas: Sequence[float] = (0.9, 0.999), rmsprop_alpha: float = 0.99, rmsprop_momentum:
        float = 0.0, rmsprop_centered: bool = False, weight_decay: float | None = None, max_grad_norm: float | None = None,
        activation: Literal["relu", "tanh", "gelu", "silu", "elu", "leaky_relu"] = 'relu', layer_norm: bool = False, init:
        Literal["default", "orthogonal"] = 'default', network: Any = None, network_kwargs: Mapping[str, Any] = {},
        buffer_size: int = 1000000, batch_size: int = 256, learning_starts: int = 1000, train_freq: int = 1, gradient_steps:
        int = 1, clip_reward: float | None = None, normalize_rewards: bool = False, n_step: int = 1, frame_stack: int = 1,
        hidden_sizes: Sequence[int] = (256, 256), reward_scale: float = 1.0, tau: float = 0.005, target_update_interval: int =
        1, actor_update_interval: int = 1, alpha: float = 1.0, learn_alpha: bool = True, target_entropy: float | None = None,
        normalize_observations: bool = False, observation_scale: Sequence[float] | None = None, cnn: Literal["nature",
        "impala", "drq", "minatar"] = 'nature', cnn_layers: Sequence[Sequence[int]] = ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
        cnn_features: int = 512, n_critics: int = 2, num_quantiles: int = 25, dropped_quantiles: int = 2, env_kwargs:
        Mapping[str, Any] = {}, env_workers: Literal["inline", "subprocess"] = 'inline', env_timeout: float | None = None,
        env_fresh: bool = False, wrappers: Sequence[Mapping[str, Any]] = (), num_envs: int = 1, seed: int = 0,
        total_timesteps: int = 50000, device: str = 'cpu', compile: Literal["auto", "on", "off"] = 'auto', threads: int = 1,
        output_dir: str | None = None, collectors: Mapping[str, Any] = {}, eval: Mapping[str, Any] = {}, stop: Mapping[str,
        Any] = {}, checkpoint: Mapping[str, Any] = {}, log: Mapping[str, Any] = {}, init_from: str | Path | None = None,
        overwrite: bool = False
    ) -> None: ...
