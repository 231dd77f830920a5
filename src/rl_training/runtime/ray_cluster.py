"""Connecting to Ray, which runs work on other cores and machines, and leaving it.

Ray's processes listen on all interfaces of a machine, so an instance that we start always requires a token: the user's, if
there is one, or else one that is drawn for this process and never written to a file.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import logging
import math
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError, RLTrainingError, one_line
from rl_training.runtime.ray_actor import Actor
from rl_training.runtime.ray_watchdog import watchdog

#: The settings of an instance that we start: no dashboard, nothing on our standard output, no statistics for Ray's makers.
QUIET: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
#: In place of an address: start an instance on this machine.
LOCAL = "local"
#: Seconds after which an address is taken to be wrong.
PATIENCE = 5.0


def require_ray() -> None:
    """Raises if Ray is missing."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError("ray", "ray", "running on Ray")


@contextlib.contextmanager
def connected(address: str | None, **options: Any) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at this address: ``auto`` is the one that runs on this machine, and None
    starts an instance with these ``options``, which ends with the block. A connection that the user's own program has made
    is used as it is."""
    require_ray()
    with contextlib.ExitStack() as watched, _variables({} if address is not None else _own_variables()):
        import ray

        if ray.is_initialized():
            yield ray
            return
        _require_listening(address)
        mark = watched.enter_context(watchdog()) if address is None else {}
        try:
            # Ray would advise against authentication, and say that only the main thread can give it a handler of SIGTERM.
            for name in ("authentication", "worker"):
                logging.getLogger(f"ray._private.{name}").setLevel(logging.ERROR)
            with _sigterm_kept(), _variables(mark):
                ray.init(**({"address": "local", **options} if address is None else {"address": address}), **QUIET)
        except Exception as error:  # Ray raises anything, also plain exceptions
            raise ConfigError(_why_not(address, error)) from error
        try:
            yield ray
        finally:
            ray.shutdown()


class Cluster:
    """A connection for this many collectors, which is made while the trainer does other things. Starting Ray takes seconds,
    and so do the imports of an actor.

    The thread that makes it stays until ``close``, because Linux ends Ray's processes with the thread that has started them.
    """

    def __init__(self, address: str | None, count: int, cpus: float) -> None:
        self.asked = address, count, cpus
        require_ray()
        with _variables({} if address is not None else _own_variables()):
            import ray  # not in the thread: two threads that import the same modules may find them half made
        self._starts = address is None and not ray.is_initialized()  # an instance of ours
        self._made, self._left = threading.Event(), threading.Event()
        self._ray: Any = None
        self._error: Exception | None = None
        self._spare: list[Any] = []
        self._thread = threading.Thread(target=self._hold, name="Ray", daemon=True)
        self._thread.start()

    @property
    def ray(self) -> Any:
        """The module, once it is connected. Raises if it cannot be, or if the cluster is too small."""
        self._made.wait()
        if self._error is not None:
            raise self._error
        return self._ray

    def require(self) -> None:
        """Raises if the cluster is known not to fit. An instance of ours, which has what it needs, is not waited for."""
        if not self._starts or self._made.is_set():
            self.ray  # noqa: B018 - raises

    def actor(self) -> Any:
        """An actor that has not begun: one of those that were started with the connection, or else a new one."""
        ray = self.ray
        return self._spare.pop() if self._spare else self._new_actor(ray)

    def close(self) -> None:
        self._left.set()
        self._thread.join()

    def _hold(self) -> None:
        address, count, cpus = self.asked
        try:
            with connected(address, num_cpus=math.ceil(count * cpus)) as ray:
                there = ray.cluster_resources().get("CPU", 0.0)
                if there < count * cpus:
                    raise ConfigError(
                        f"the Ray cluster has {there:g} CPUs, but {count} collectors of {cpus:g} CPUs need {count * cpus:g}; "
                        "lower collectors.count or collectors.cpus, or add nodes first"
                    )
                self._spare = [self._new_actor(ray) for _ in range(count)]
                self._ray = ray
                self._made.set()
                self._left.wait()
                self._spare = []
        except Exception as error:  # for those who wait
            self._error = error
        finally:
            self._made.set()

    def _new_actor(self, ray: Any) -> Any:
        return ray.remote(num_cpus=self.asked[2], max_restarts=0, max_task_retries=0)(Actor).remote()


_early: list[Cluster] = []


def start_early(address: str | None, count: int, cpus: float) -> None:
    """Starts the connection of a run that will probably come. If it does not, this ends with the process."""
    with contextlib.suppress(RLTrainingError):  # the run will report it
        _early.append(Cluster(address, count, cpus))
        atexit.register(_early[-1].close)


def cluster_for(address: str | None, count: int, cpus: float) -> Cluster:
    """A connection that starts now, or has started early."""
    while _early:
        cluster = _early.pop()
        if cluster.asked == (address, count, cpus):
            return cluster
        cluster.close()
    return Cluster(address, count, cpus)


def _why_not(address: str | None, error: Exception) -> str:
    text = one_line(str(error))
    if address is None:
        return f"Ray could not be started on this machine ({text}); see that the directory for temporary files is writable"
    if "ersion mismatch" in text:
        return f"the Ray cluster at {address} has other versions than this machine ({text}); install the same on both"
    if "oken" in text:
        return (
            f"the Ray cluster at {address} refuses this machine's token ({text}); set RAY_AUTH_TOKEN to the cluster's, or "
            "RAY_AUTH_TOKEN_PATH to a file with it"
        )
    if address == "auto":
        return f"no Ray cluster runs on this machine ({text}); start one with: ray start --head, or give its host:port"
    return f"the Ray cluster at {address} cannot be used ({text})"


def _require_listening(address: str | None) -> None:
    """Ray itself takes a minute to give up an address where nothing listens."""
    if address is None or address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except OSError as error:
        raise ConfigError(
            f"nothing answers at the Ray address {address} ({error.strerror or error}); give the host:port that ray start "
            "--head has printed"
        ) from error


def _own_variables() -> dict[str, str | None]:
    """Environment variables of an instance of ours. Without a mode of authentication, Ray asks for the token."""
    values: dict[str, str | None] = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": None}
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    saved = os.path.expanduser("~/.ray/auth_token")  # noqa: PTH111 (unlike Path, it takes a user without a home)
    if not named and not Path(saved).exists():
        values["RAY_AUTH_TOKEN"] = _drawn_token()
    return values


@functools.cache
def _drawn_token() -> str:
    """One for the process: Ray keeps the first that it has read."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Environment variables inside the block, for Ray's processes; None for those that must not be set."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray sets its own handler of SIGTERM, which would end the process unsaved."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
