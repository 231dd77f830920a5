"""Ends what is left of a Ray instance whose trainer was killed.

The kernel ends Ray's two servers with the trainer, and workers end when these do. But one of Ray's agents tries for a minute
to report to one of the dead servers that the other is dead.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator

#: in the environment of the processes of an instance, by which they are found
MARK = "RL_TRAINING_RAY"
#: Waits for a line from the trainer, which has then ended Ray itself. If there is none, the trainer was killed, and Ray gets
#: some seconds to end by itself. Only Ray's processes are meant, not others that the trainer starts while Ray does. They are
#: looked for more than once, since a look at a process may fail.
SCRIPT = f"""
read -r over && exit
found=
for second in $(seq $((3 * $1))); do
    for file in $(grep -ls "{MARK}=$0" /proc/[0-9]*/environ); do
        process=${{file#/proc/}}
        found="$found ${{process%/environ}}"
    done
    for process in $found; do
        [ "$second" -gt "$1" ] && grep -qs -e ray:: -e /ray/ "/proc/$process/cmdline" && kill -KILL "$process"
    done
    sleep 1
done
"""


@contextlib.contextmanager
def watchdog(grace: int = 5) -> Iterator[dict[str, str]]:
    """The variables of an instance that has a watchdog until the block ends; none where it cannot have one."""
    if not sys.platform.startswith("linux") or shutil.which("sh") is None:
        yield {}
        return
    name = secrets.token_hex(16)
    # In a session of its own, because a signal to the trainer's whole group must not end it too.
    process = subprocess.Popen(
        ["sh", "-c", SCRIPT, name, str(grace)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    try:
        yield {MARK: name}
    finally:
        with contextlib.suppress(OSError):  # it was killed
            process.communicate(b"over\n")
