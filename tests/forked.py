"""Python in a process of its own, in a fraction of the time that importing torch takes.

``python -m forked`` imports what the commands need and waits. For each request it forks a process, which becomes a child of
the test's own and gets the arguments, directory, environment variables, limits and streams that a new process would have.
Fresh interpreters are for tests in which starting one is the point.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Linux: processes whose parent has ended become children of this one, an option of prctl(2).
PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES = 2**20
IMPORTED = ("matplotlib.pyplot", "rl_training.cli", "rl_training.runtime.export", "rl_training.runtime.sessions")


class ForkedPython(subprocess.Popen[str]):
    """A ``Popen`` of Python with these arguments: ``-m module``, ``-c code`` or a script, and its arguments. ``limits`` are
    those of ``resource.setrlimit``."""

    def __init__(self, arguments: Sequence[str], *, limits: Mapping[int, int] | None = None, **options: Any) -> None:
        self._limits = dict(limits or {})
        super().__init__(list(arguments), **{"text": True, **options})

    def _execute_child(self, *given: Any) -> None:
        """Called by ``Popen``; the streams of the child are at the same places in every version of Python."""
        arguments, cwd, env, pipes, new_session = given[0], given[5], given[6], given[10:16], given[21]
        request = {
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
            "limits": list(self._limits.items()),
        }
        theirs = (pipes[0], pipes[3], pipes[5])
        self.pid = _forked(request, [own if stream == -1 else stream for own, stream in enumerate(theirs)])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


@functools.cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "forked", str(theirs.fileno())]
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    process.returncode = 0  # it ends with the socket, and is not waited for
    return ours


def _forked(request: dict[str, Any], streams: list[int]) -> int:
    """The id of a new child of this process."""
    server = _server()
    library = ctypes.CDLL(None)
    assert library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        socket.send_fds(server, [json.dumps(request).encode()], streams)
        return int(server.recv(64))
    finally:
        library.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def serve(server: socket.socket) -> NoReturn:
    """Forks a process for each request. It becomes the client's child when the one between them ends."""
    for name in IMPORTED:
        importlib.import_module(name)

    gc.freeze()  # no collection in a forked process touches, and so copies, the memory that they share
    while True:
        message, streams, _, _ = socket.recv_fds(server, MOST_BYTES, 3)
        if not message:
            os._exit(0)
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                for descriptor in (reader, writer, server.detach()):
                    os.close(descriptor)
                request = json.loads(message)
                _become(request, streams)
                _run(request["arguments"])
            os.write(writer, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        server.send(os.read(reader, 64))
        for descriptor in (reader, writer, *streams):
            os.close(descriptor)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Gives this process what a new one would have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["env"])
    for limited, limit in request["limits"]:
        resource.setrlimit(limited, (limit, limit))
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in known]
    sys.path[0:1] = [request["cwd"], *own]
    importlib.invalidate_caches()


def _run(arguments: list[str]) -> NoReturn:
    """Runs what the arguments name and ends as a process does, but for the memory: to free what the server has imported takes
    a second."""
    code: Any = 0
    try:
        _execute(*arguments)
    except SystemExit as error:
        code = error.code
    except BaseException:
        code = 1
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code or 0)


def _execute(kind: str, *rest: str) -> None:
    main = sys.modules["__main__"] = types.ModuleType("__main__")  # what worker processes would import again
    if kind == "-m":
        sys.argv = list(rest)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(rest[0], main.__dict__)
    else:
        sys.argv = [kind, *rest]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve(socket.socket(fileno=int(sys.argv[1])))
