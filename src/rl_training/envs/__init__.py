"""Environments: creating them, describing their spaces, and stepping many of them with exact, reproducible resets.

Importing this package registers ``rl_training/Recall-v0``. Gymnasium has had no plugins since 1.0, so code that imports
nothing from here must name the module in the id: ``gym.make("rl_training.envs:rl_training/Recall-v0")``.
"""

import gymnasium as gym

gym.register("rl_training/Recall-v0", entry_point="rl_training.envs.recall:RecallEnv")
