"""DRQN on CartPole-v1 from Python: train, evaluate, act, export.

python examples/drqn_cartpole_reference.py            the whole packaged config
python examples/drqn_cartpole_reference.py --smoke    a tiny run, a few seconds
"""

from __future__ import annotations

from reference import run_reference

from rl_training import DRQN

if __name__ == "__main__":
    run_reference(DRQN, "drqn/cartpole", __doc__)
