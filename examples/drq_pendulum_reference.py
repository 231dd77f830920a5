"""DrQ on Pendulum-v1 from pixels, from Python: train, evaluate, act, export.

python examples/drq_pendulum_reference.py            the packaged config
python examples/drq_pendulum_reference.py --smoke    a tiny run, a few seconds
"""

from __future__ import annotations

from reference import run_reference

from rl_training import DrQ

if __name__ == "__main__":
    run_reference(DrQ, "drq/pendulum_pixels", __doc__)
