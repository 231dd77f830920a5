"""Connecting to Ray, which runs work on other cores and machines, and leaving it.

Ray's processes listen on all interfaces of a machine, so an instance that we start always requires a token: the user's, if
there is one, or else one that is drawn for this process and never written to a file.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, MissingExtraError, one_line

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
    with _variables({} if address is not None else _own_variables()):
        import ray

        if ray.is_initialized():
            yield ray
            return
        _require_listening(address)
        try:
            logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it would advise against authentication
            with _sigterm_kept():
                ray.init(**({"address": "local", **options} if address is None else {"address": address}), **QUIET)
        except Exception as error:  # Ray raises anything, also plain exceptions
            raise ConfigError(_why_not(address, error)) from error
        try:
            yield ray
        finally:
            ray.shutdown()


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
