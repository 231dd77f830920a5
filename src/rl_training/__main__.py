"""``python -m rl_training``."""

from rl_training.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
