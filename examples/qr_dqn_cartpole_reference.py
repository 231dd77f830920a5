"""QR-DQN on CartPole-v1 from Python: train, evaluate, act, export.

python examples/qr_dqn_cartpole_reference.py            the packaged config, about a minute
python examples/qr_dqn_cartpole_reference.py --smoke    a tiny run, a few seconds
"""

from __future__ import annotations

from reference import run_reference

from rl_training import QRDQN

if __name__ == "__main__":
    run_reference(QRDQN, "qr_dqn/cartpole", __doc__)
