"""``python -m rl_training``."""

from rl_training.cli import run

if __name__ == "__main__":
    raise SystemExit(run())
