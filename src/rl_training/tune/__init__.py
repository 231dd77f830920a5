"""``rl-training tune``: searches for settings with Optuna, and confirms the best on seeds that it never saw."""
