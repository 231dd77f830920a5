"""Runs ``rl-training`` as if on Windows: without the modules, attributes and abilities that only POSIX systems have.

What other packages need of them they have got before, by importing them first; nothing of rl_training is imported until then.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import select
import shutil
import signal
import sys
import types
from typing import Any

ABSENT_MODULES = ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"]
ABSENT = {
    os: "O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_DIRECTORY fork register_at_fork getuid geteuid getgid getpgid sysconf "
    "set_blocking sched_getaffinity sched_setaffinity killpg setsid fchmod chown mkfifo",
    signal: "pthread_kill pthread_sigmask sigwait sigtimedwait SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGURG",
    select: "poll epoll",
}
#: Packages that are imported while everything is still there.
OTHERS = (
    "torch gymnasium matplotlib.pyplot tensorboard.summary.writer.event_file_writer rich.console filelock tempfile "
    "multiprocessing.connection subprocess socket safetensors.numpy pydantic yaml cloudpickle threadpoolctl PIL.Image"
)


def take_away() -> None:
    """Removes from this process what Windows does not have. The lock of filelock, here the one for POSIX, keeps it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("filelock.") and getattr(module, "os", None) is os:
            module.os = types.SimpleNamespace(**vars(os))  # type: ignore[attr-defined]
    for name in ABSENT_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in ABSENT.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    signal.SIGBREAK = signal.SIGWINCH  # type: ignore[attr-defined]
    os.supports_follow_symlinks -= {os.link, os.stat}
    os.supports_dir_fd.clear()
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    os.open = refusing(os.open, lambda path, *_, **options: options.get("dir_fd") is not None or os.path.isdir(path))  # noqa: PTH112
    os.stat = refusing(os.stat, lambda *_, **options: options.get("dir_fd") is not None)
    os.link = refusing(os.link, lambda *_, **options: not options.get("follow_symlinks", True))
    os.symlink = refusing(os.symlink, lambda *_, **options: True)


def refusing(function: Any, refuses: Any) -> Any:
    def call(*arguments: Any, **options: Any) -> Any:
        if refuses(*arguments, **options):
            raise OSError(1, f"not on this system: {function.__name__}")
        return function(*arguments, **options)

    return call


def import_everything() -> int:
    """Imports every module of the package, as far as extras are installed, except the trackers of others."""
    import rl_training
    from rl_training.errors import MissingExtraError

    modules = [module.name for module in pkgutil.walk_packages(rl_training.__path__, "rl_training.")]
    names = [name for name in modules if not name.endswith(("__main__", "wandb_tracker", "mlflow_tracker"))]
    for name in names:
        with contextlib.suppress(MissingExtraError):
            importlib.import_module(name)
    return len(names)


if __name__ == "__main__":
    for name in OTHERS.split():
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith("rl_training")]
    take_away()
    print(f"imported {import_everything()} modules")
    from rl_training.cli import main

    commands = [part.split() for part in " ".join(sys.argv[1:]).split(" + ")]
    raise SystemExit(max(main(command) for command in commands))
