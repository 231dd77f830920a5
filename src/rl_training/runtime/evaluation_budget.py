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
#: An evaluation that was asked for may take an episode of this length; most environments end by then.
USUAL_LENGTH = 1_000


class EvaluationBudget:
    """Counts the env steps of evaluations during training."""

    def __init__(self, config: EvalConfig, together: int = 1) -> None:
        """``together`` environments always step at the same time, whether their episodes count or not."""
        self._config, self._together = config, together
        self._spent = 0
        self._last_length = 0.0

    def during(self, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> Extent | None:
        """The evaluation that is due now; None if it has to be left out."""
        extent = self._extent(self._config.episodes, 0.5, env_steps, num_envs, seen)
        return None if extent.episodes < min(LEAST_EPISODES, self._config.episodes) else extent

    def at_end(self, env_steps: int, num_envs: int, seen: EpisodeStatistics, *, asked: bool = False) -> Extent | None:
        """The evaluation after training; None if the budget is not enough for one episode. If the user ``asked`` for it, it
        has at least one."""
        extent = self._extent(self._config.final_episodes, 1.0, env_steps, num_envs, seen)
        if extent.episodes == 0 and asked:
            return Extent(1, self._config.max_episode_steps or max(USUAL_LENGTH, round(self._usual_length(seen))))
        return extent if extent.episodes else None

    def _extent(self, wanted: int, part: float, env_steps: int, num_envs: int, seen: EpisodeStatistics) -> Extent:
        """What this part of the share is enough for. Episodes may be longer than those of training: a better policy stays
        alive, and a deterministic one can be stuck where a random one is not, in Breakout for 108,000 frames. An episode
        is therefore stopped when nothing is left of the whole share."""
        if self._config.budget is None:
            return Extent(wanted, self._config.max_episode_steps)
        left, most = (max(0, round(share * self._config.budget * env_steps) - self._spent) for share in (part, 1.0))
        # Before the first episode has ended, episodes are known to be at least as long as what has been seen of them.
        length = max(self._usual_length(seen), 1.0 if seen.mean_length else env_steps / num_envs)
        episodes = self._together * int(left / (length * self._together))
        longest = most if self._together == 1 else max(1, left // self._together)
        return Extent(min(wanted, episodes), min(longest, self._config.max_episode_steps or longest), left)

    def _usual_length(self, seen: EpisodeStatistics) -> float:
        return max(seen.mean_length or 0.0, self._last_length)

    def on_evaluation(self, result: EvaluationResult) -> None:
        """Counts an evaluation during training."""
        self._spent += result.steps
        self._last_length = sum(result.lengths) / len(result.lengths)

    def state_dict(self) -> State:
        return {"spent": self._spent, "last_length": self._last_length}

    def load_state_dict(self, state: State) -> None:
        self._spent, self._last_length = state["spent"], state["last_length"]
