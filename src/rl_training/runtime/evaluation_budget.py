"""How many episodes an evaluation may take, so that evaluating costs no more than a share of training (``eval.budget``).

Half of the share is for evaluations during training, and what is left is for the one at the end. Costs are counted in env
steps, not in seconds, so a run that is repeated or resumed evaluates at the same steps and over the same episodes.
"""

from __future__ import annotations

from rl_training.experiment.sections import EvalConfig
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult
from rl_training.types import State

#: An evaluation during training takes at least this many episodes; if they are too expensive, it is left out.
LEAST_EPISODES = 3
#: An evaluated episode is never stopped before this many steps, which is what most environments end at.
USUAL_LENGTH = 1_000


class EvaluationBudget:
    """Counts the env steps of evaluations during training."""

    def __init__(self, config: EvalConfig) -> None:
        self._config = config
        self._spent = 0
        self._last_length = 0.0

    def episodes_during(self, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> int:
        """The episodes of an evaluation that is due now; 0 if it has to be left out."""
        wanted, share = self._config.episodes, self._config.budget
        if share is None:
            return wanted
        affordable = self._affordable(0.5 * share * env_steps, env_steps, num_envs, seen)
        return 0 if affordable < min(LEAST_EPISODES, wanted) else min(wanted, affordable)

    def episodes_at_end(self, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> int:
        """The episodes of the evaluation after training: at least one."""
        wanted, share = self._config.final_episodes, self._config.budget
        if share is None:
            return wanted
        return max(1, min(wanted, self._affordable(share * env_steps, env_steps, num_envs, seen)))

    def longest_episode(self, env_steps: int) -> int | None:
        """The steps after which an evaluated episode is stopped if no setting has a limit: as many as training has taken.
        A deterministic policy can be stuck where a random one is not, in Breakout until the limit of 108,000 frames."""
        if self._config.budget is None or self._config.max_episode_steps is not None:
            return self._config.max_episode_steps
        return max(USUAL_LENGTH, env_steps)

    def _affordable(self, allowed: float, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> int:
        # Before the first episode has ended, episodes are known to be at least as long as what has been seen of them.
        length = max(seen.mean_length or env_steps / num_envs, self._last_length, 1.0)
        return int(max(0.0, allowed - self._spent) / length)

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Counts an evaluation during training."""
        self._spent += sum(result.lengths)
        self._last_length = sum(result.lengths) / len(result.lengths)

    def state_dict(self) -> State:
        return {"spent": self._spent, "last_length": self._last_length}

    def load_state_dict(self, state: State) -> None:
        self._spent, self._last_length = state["spent"], state["last_length"]
