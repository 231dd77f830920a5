"""Environments: making them, describing their spaces, and stepping many of them with exact, repeatable resets.

Importing this registers ``rl_training/Recall-v0``. Gymnasium has had no plugins since 1.0, so that code which imports nothing
from here names the module in the id: ``gym.make("rl_training.envs:rl_training/Recall-v0")``.
"""

import gymnasium as gym

gym.register("rl_training/Recall-v0", entry_point="rl_training.envs.recall:RecallEnv")
