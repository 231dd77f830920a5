"""Environments: making them, describing their spaces, and stepping many of them with exact, repeatable resets."""

import gymnasium as gym

gym.register("rl_training/Recall-v0", entry_point="rl_training.envs.recall:RecallEnv")
