"""C51 on CartPole-v1 from Python: train, evaluate, act, export.

python examples/c51_cartpole_reference.py            the packaged config, about a minute
python examples/c51_cartpole_reference.py --smoke    a tiny run, a few seconds
"""

from __future__ import annotations

from reference import run_reference

from rl_training import C51

if __name__ == "__main__":
    run_reference(C51, "c51/cartpole", __doc__)
