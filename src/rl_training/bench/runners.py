"""Where the jobs of a bench or a tune run: on this machine, or on a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from rl_training.bench.runner import Runner
from rl_training.errors import ConfigError, shown
from rl_training.experiment.collectors import is_address
from rl_training.runtime.ray_cluster import LOCAL, connected, require_ray

#: Makes a runner of these jobs: as ``Runner`` is made.
MakeRunner = Callable[..., Runner]


def require_usable_ray(address: str) -> None:
    """Rejects what cannot be the address of a cluster, before anything is trained."""
    require_ray()
    if address != LOCAL and not is_address(address):
        raise ConfigError(
            f"--ray takes auto or the host:port of a Ray cluster, not {shown(address)}; put --ray after the configs"
        )


@contextlib.contextmanager
def runners(address: str | None) -> Iterator[MakeRunner]:
    """Makes runners on the Ray cluster at this address, or without one on this machine."""
    if address is None:
        yield Runner
        return
    from rl_training.bench.on_ray import RayRunner

    where = "starting Ray on this machine" if address == LOCAL else f"connecting to Ray at {address}"
    sys.stderr.write(f"{where}; whoever has its token can run code on its nodes: docs/security.md\n")
    with connected(None if address == LOCAL else address) as ray, _stopped_by_sigterm():
        yield functools.partial(RayRunner, ray)


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Without Ray, runs notice that their runner has ended, and save. Ray would kill them, so they must be asked to stop."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
