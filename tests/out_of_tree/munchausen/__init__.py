"""Munchausen DQN as a package of its own."""
