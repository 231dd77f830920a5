"""Reinforcement learning that is provably right, resumes bit for bit, and is fast."""
