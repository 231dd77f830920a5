"""R2D2 on CartPole-v1 from Python: train, evaluate, act, export.

python examples/r2d2_cartpole_reference.py            the whole packaged config
python examples/r2d2_cartpole_reference.py --smoke    a tiny run, a few seconds
"""

from __future__ import annotations

from reference import run_reference

from rl_training import R2D2

if __name__ == "__main__":
    run_reference(R2D2, "r2d2/cartpole", __doc__)
