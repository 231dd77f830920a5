"""Collectors as actors of a Ray cluster. Ray restarts nothing by itself: the trainer alone knows where a collector stood."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from rl_training.errors import ConfigError, one_line
from rl_training.runtime.collector_handles import CollectorLost, Handle
from rl_training.runtime.ray_cluster import connected
from rl_training.runtime.stretch_collector import Answer, Call, CollectorServer, Reply, Setup, packed_state
from rl_training.types import State
from rl_training.version import __version__

#: Ray sends objects of fewer bytes within its messages. Larger ones go through its object store, which takes the trainer half
#: a millisecond.
WITHIN_MESSAGE = 100_000


class Actor:
    """The actor that Ray runs on a node. What comes and goes is pickled here: Ray takes longer for several small objects."""

    def __init__(self, content: bytes, state: bytes | None) -> None:
        self._server = CollectorServer(content, state)

    def play(self, call: bytes, weights: bytes | None, version: str) -> bytes | Reply | str:
        """Plays a stretch, if the node has the trainer's version; otherwise returns its own. ``weights`` are given if they do
        not come with the call. A large reply is left to Ray, which need not copy its arrays."""
        if version != __version__:
            return __version__
        asked: Call = cloudpickle.loads(call)
        reply = self._server.play(asked if weights is None else asked._replace(weights=weights))
        packed = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        return packed if len(packed) < WITHIN_MESSAGE else reply


class Broadcast:
    """Large weights in Ray's object store, once for all collectors."""

    def __init__(self, ray: Any) -> None:
        self._ray, self._version, self._reference = ray, -1, None

    def reference(self, call: Call) -> Any:
        """A reference to the weights of this call."""
        if call.version != self._version:
            try:
                self._reference = self._ray.put(call.weights)
            except self._ray.exceptions.RayError as error:
                raise ConfigError(_failed(error)) from error
            self._version = call.version
        return self._reference


def _failed(error: Exception) -> str:
    return f"Ray failed ({one_line(str(error))}); is its object store full?"


class RayHandle(Handle):
    """A collector on the cluster that ``ray``, the module, is connected to."""

    def __init__(self, setup: Setup, ray: Any, broadcast: Broadcast) -> None:
        super().__init__(setup)
        self._ray, self._broadcast = ray, broadcast
        cpus = setup.config.collectors.cpus
        self._class = ray.remote(num_cpus=cpus, max_restarts=0, max_task_retries=0)(Actor)
        self._content: Any = None
        self._actor: Any = None
        self._reply: Any = None

    def start(self, state: State | bytes | None) -> None:
        self.close()
        if self._content is None:
            self._content = self.setup.to_bytes()
        self._actor = self._class.remote(self._content, None if state is None else packed_state(state))
        self.weights = -1

    def ask(self, call: Call) -> None:
        stored = None
        if call.weights is not None and len(call.weights) >= WITHIN_MESSAGE:
            stored, call = self._broadcast.reference(call), call._replace(weights=None)
        self._reply = self._actor.play.remote(pickle.dumps(call, pickle.HIGHEST_PROTOCOL), stored, __version__)

    @classmethod
    def ready(cls, handles: Sequence[Handle], most: int, seconds: float) -> Sequence[Handle]:
        by_reply = {handle._reply: handle for handle in handles if isinstance(handle, RayHandle)}
        ray = next(iter(by_reply.values()))._ray
        return [by_reply[reply] for reply in ray.wait(list(by_reply), num_returns=most, timeout=seconds)[0]]

    def answer(self) -> Answer:
        exceptions = self._ray.exceptions
        try:
            reply = self._ray.get(self._reply)
        except exceptions.RayTaskError as error:
            cause = one_line(str(error)).rpartition(": ")
            raise ConfigError(
                f"the nodes of the Ray cluster cannot run a collector ({cause[0].rpartition(' ')[2]}: {cause[2]}); install "
                "rl-training and the modules of the environment on all of them, in the same versions"
            ) from error
        except (exceptions.RayActorError, exceptions.ObjectLostError, exceptions.OutOfMemoryError) as error:
            raise CollectorLost(one_line(str(error))) from error
        except exceptions.RayError as error:
            raise ConfigError(_failed(error)) from error
        if isinstance(reply, str):
            raise ConfigError(
                f"a node of the Ray cluster has rl-training {reply}, this machine {__version__}; install the same on both"
            )
        return self.taken(cloudpickle.loads(reply) if isinstance(reply, bytes) else reply)

    def close(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(Exception):  # Ray itself may have ended
                self._ray.kill(self._actor)
            self._actor = None


@contextlib.contextmanager
def ray_handles(setups: Sequence[Setup]) -> Iterator[list[RayHandle]]:
    """The collectors, on the cluster that the config names or on an instance that ends with the block."""
    config = setups[0].config.collectors
    needed = math.ceil(config.count * config.cpus)
    with connected(config.address, num_cpus=needed) as ray:
        there = ray.cluster_resources().get("CPU", 0.0)
        if there < config.count * config.cpus:
            raise ConfigError(
                f"the Ray cluster has {there:g} CPUs, but {config.count} collectors of {config.cpus:g} CPUs need "
                f"{config.count * config.cpus:g}; lower collectors.count or collectors.cpus, or add nodes first"
            )
        broadcast = Broadcast(ray)
        yield [RayHandle(setup, ray, broadcast) for setup in setups]
