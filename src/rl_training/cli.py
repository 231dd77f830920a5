"""The command-line interface. Torch is imported only by the commands that need it, so that ``--help`` is fast."""

from __future__ import annotations

import argparse
import errno
import os
import re
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from rl_training.arguments import make_parser
from rl_training.commands import looking, training, using
from rl_training.commands.console import warn
from rl_training.errors import ConfigError, DivergenceError, EnvironmentFault, RLTrainingError, UserCodeError, one_line, shown
from rl_training.limits import address_limit
from rl_training.search_path import forget_current_directory, search_current_directory
from rl_training.tracebacks import frames_of

USER_ERROR = 2
DIVERGED = 3
#: The address space that loading torch takes; with less, it would fail somewhere inside.
LEAST_ADDRESSES = 800_000_000
#: What switches the colour of a terminal: Gymnasium's warnings have colours, and a "WARN: " of their own.
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: 0 on success, 2 for a user error, 3 if training diverged or a policy is
    not finite, 128 + n after signal n."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    arguments.command_line = shlex.join(["rl-training", *(sys.argv[1:] if argv is None else argv)])
    warnings.showwarning = _show_warning
    if getattr(arguments, "trust_modules", True):
        search_current_directory()  # the names are the user's own
    else:
        forget_current_directory()  # before anything searches it for modules and plugins
    try:
        _require_address_space()
        code: int = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return code
    except RLTrainingError as error:
        if arguments.debug:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, EnvironmentFault | UserCodeError) and error.__cause__ is not None and not arguments.debug:
            _print_frames(frames_of(error.__cause__))
        return DIVERGED if isinstance(error, DivergenceError) else USER_ERROR
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # how torch reports it
            raise
        reason = f" ({one_line(str(error))})" if str(error) else ""
        print(f"error: the memory is used up{reason}; lower the sizes in the config, or raise ulimit -v", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has closed the pipe, as in `rl-training list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in CANNOT_OPEN:
            raise
        print(
            f"error: {shown(error.filename)} cannot be opened: {error.strerror}; {CANNOT_OPEN[error.errno]}", file=sys.stderr
        )
        return USER_ERROR


def _print_frames(frames: list[str]) -> None:
    """Prints where in the user's own code an exception was raised."""
    if frames:
        print("it was raised here (--debug also shows the frames of rl_training and Gymnasium):", file=sys.stderr)
    for frame in frames:
        print(f"  {frame}", file=sys.stderr)


#: Failures to open a file that can happen anywhere, and what to do about them.
CANNOT_OPEN = {
    errno.ENAMETOOLONG: "use a shorter path",
    errno.EMFILE: "raise ulimit -n, or lower num_envs",
    errno.ENFILE: "close other programs, or lower num_envs",
}


def _require_address_space() -> None:
    limit = address_limit()
    if limit is not None and limit < LEAST_ADDRESSES:
        raise ConfigError(
            f"torch needs {LEAST_ADDRESSES / 1e9:.1f} GB of address space to load, but this process may have "
            f"{limit / 1e9:.1f} GB: raise the limit with ulimit -v"
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    warn(one_line(COLOUR.sub("", str(message)).removeprefix("WARN: ")))


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "train": training.train_command,
    "resume": training.resume_command,
    "eval": using.eval_command,
    "predict": using.predict_command,
    "export": using.export_command,
    "list": looking.list_command,
    "show": looking.show_command,
    "plot": looking.plot_command,
    "report": looking.report_command,
    "bench": looking.bench_command,
    "tune": training.tune_command,
}
