"""How large an evaluation may be, so that evaluating costs no more than a share of training (``eval.budget``).

Half of the share is for evaluations during training, and what is left is for the one at the end. Costs are counted in env
steps, not in seconds, so a run that is repeated or resumed evaluates at the same steps and over the same episodes.
"""

from __future__ import annotations

from rl_training.experiment.sections import EvalConfig
from rl_training.runtime.episodes import EpisodeStatistics
from rl_training.runtime.evaluation import EvaluationResult, Extent
from rl_training.types import State

#: An evaluation during training takes at least this many episodes; if they are too expensive, it is left out.
LEAST_EPISODES = 3
#: No evaluated episode is stopped before this many steps unless a setting says so; most environments end by then.
USUAL_LENGTH = 1_000


class EvaluationBudget:
    """Counts the env steps of evaluations during training."""

    def __init__(self, config: EvalConfig) -> None:
        self._config = config
        self._spent = 0
        self._last_length = 0.0

    def during(self, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> Extent | None:
        """The evaluation that is due now; None if it has to be left out."""
        extent = self._extent(self._config.episodes, 0.5, env_steps, num_envs, seen)
        return None if extent.episodes < min(LEAST_EPISODES, self._config.episodes) else extent

    def at_end(self, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> Extent:
        """The evaluation after training, which has at least one episode."""
        extent = self._extent(self._config.final_episodes, 1.0, env_steps, num_envs, seen)
        return extent._replace(episodes=max(1, extent.episodes))

    def _extent(self, wanted: int, part: float, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> Extent:
        """What this part of the share is enough for. Episodes may be longer than those of training: a better policy stays
        alive, and a deterministic one can be stuck where a random one is not, in Breakout for 108,000 frames."""
        if self._config.budget is None:
            return Extent(wanted, self._config.max_episode_steps)
        left = max(0, round(part * self._config.budget * env_steps) - self._spent)
        usual = max(seen.mean_length or 0.0, self._last_length)
        # Before the first episode has ended, episodes are known to be at least as long as what has been seen of them.
        length = max(usual, 1.0 if seen.mean_length else env_steps / num_envs)
        longest = self._config.max_episode_steps or max(USUAL_LENGTH, left, round(usual))
        return Extent(min(wanted, int(left / length)), longest, left)

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Counts an evaluation during training."""
        self._spent += sum(result.lengths)
        self._last_length = sum(result.lengths) / len(result.lengths)

    def state_dict(self) -> State:
        return {"spent": self._spent, "last_length": self._last_length}

    def load_state_dict(self, state: State) -> None:
        self._spent, self._last_length = state["spent"], state["last_length"]
