"""Collectors as actors of a Ray cluster. Ray restarts nothing by itself: the trainer alone knows where a collector stood."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

from rl_training.errors import ConfigError, one_line
from rl_training.runtime.collector_handles import CollectorLost, Handle
from rl_training.runtime.ray_actor import WITHIN_MESSAGE
from rl_training.runtime.ray_cluster import Cluster
from rl_training.runtime.stretch_collector import Answer, Call, Setup, packed_state
from rl_training.types import State
from rl_training.version import __version__


class Broadcast:
    """Large weights in Ray's object store, once for all collectors."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._version, self._reference = cluster, -1, None

    def reference(self, call: Call) -> Any:
        """A reference to the weights of this call."""
        if call.version != self._version:
            ray = self._cluster.ray
            try:
                self._reference = ray.put(call.weights)
            except ray.exceptions.RayError as error:
                raise ConfigError(_failed(error)) from error
            self._version = call.version
        return self._reference


def _failed(error: Exception) -> str:
    return f"Ray failed ({one_line(str(error))}); is its object store full?"


class RayHandle(Handle):
    """A collector on a Ray cluster."""

    def __init__(self, setup: Setup, cluster: Cluster, broadcast: Broadcast) -> None:
        super().__init__(setup)
        self._cluster, self._broadcast = cluster, broadcast
        self._content: Any = None
        self._actor: Any = None
        self._reply: Any = None

    def start(self, state: State | bytes | None) -> None:
        self.close()
        if self._content is None:
            self._content = self.setup.to_bytes()
        self._actor = self._cluster.actor()
        self._actor.begin.remote(self._content, None if state is None else packed_state(state))
        self.weights = -1

    def ask(self, call: Call) -> None:
        stored = None
        if call.weights is not None and len(call.weights) >= WITHIN_MESSAGE:
            stored, call = self._broadcast.reference(call), call._replace(weights=None)
        self._reply = self._actor.play.remote(pickle.dumps(call, pickle.HIGHEST_PROTOCOL), stored, __version__)

    @classmethod
    def ready(cls, handles: Sequence[Handle], most: int, seconds: float) -> Sequence[Handle]:
        by_reply = {handle._reply: handle for handle in handles if isinstance(handle, RayHandle)}
        ray = next(iter(by_reply.values()))._cluster.ray
        return [by_reply[reply] for reply in ray.wait(list(by_reply), num_returns=most, timeout=seconds)[0]]

    def answer(self) -> Answer:
        ray = self._cluster.ray
        exceptions = ray.exceptions
        try:
            reply = ray.get(self._reply)
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
                self._cluster.ray.kill(self._actor)
            self._actor = None


def ray_handles(setups: Sequence[Setup], cluster: Cluster) -> list[RayHandle]:
    """The collectors, on this cluster."""
    broadcast = Broadcast(cluster)
    return [RayHandle(setup, cluster, broadcast) for setup in setups]
