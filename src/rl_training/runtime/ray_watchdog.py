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
import threading
from collections.abc import Iterator

#: in the environment of the processes of an instance, by which they are found
MARK = "RL_TRAINING_RAY"
#: Waits until the trainer has ended, which holds the other end of the pipe, and then gives Ray some seconds to end by itself.
#: Only Ray's processes are meant, not others that the trainer starts while Ray does.
SCRIPT = f"""
cat > /dev/null
for second in $(seq $1) last; do
    left=
    for file in $(grep -ls "{MARK}=$0" /proc/[0-9]*/environ); do
        grep -qs -e ray:: -e /ray/ "${{file%environ}}cmdline" && left="$left $(basename "${{file%/environ}}")"
    done
    [ -z "$left" ] && exit
    [ $second = last ] && kill -KILL $left && exit
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
        assert process.stdin is not None
        process.stdin.close()
        threading.Thread(target=process.wait, daemon=True).start()  # it may look after Ray for some seconds
