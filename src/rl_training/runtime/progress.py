"""Progress displays: a live bar on a terminal, an occasional plain line in a pipe, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from rl_training.errors import counted

if TYPE_CHECKING:
    from rl_training.runtime.evaluation import EvaluationResult
    from rl_training.runtime.hooks import Training


class Progress:
    """The interface: a hook that is also called for other things. This base class shows nothing."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def on_start(self, training: Training) -> None:
        pass

    def note(self, text: str) -> None:
        """Shows a line about what the run is doing."""

    def say(self, text: str) -> None:
        """Shows a line that must not be missed, even if nothing else is shown."""
        print(text, file=sys.stderr, flush=True)

    def update(self) -> None:
        """Called between any two steps."""

    def evaluating(self, done: int, episodes: int) -> None:
        """Shows how far an evaluation is."""

    def on_evaluation(self, result: EvaluationResult) -> None:
        pass


class _TimedProgress(Progress):
    """Updates the display every ``seconds`` seconds, however fast training is."""

    seconds: float
    _training: Training

    def __init__(self) -> None:
        self._total = 0
        self._start_step = 0
        self._next = time.monotonic() + self.seconds
        self._start_time = 0.0

    def on_start(self, training: Training) -> None:
        self._training, self._total = training, training.total_timesteps
        self._start_step, self._start_time = training.env_steps, time.monotonic()
        self._next = self._start_time + self.seconds
        self._began()

    def update(self) -> None:
        now = time.monotonic()
        if now >= self._next or self._training.env_steps >= self._total:
            self._next = now + self.seconds
            self._show()

    def evaluating(self, done: int, episodes: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self.seconds
            self._show_evaluation(f"evaluation: {done}/{episodes} episodes")

    def _show_evaluation(self, text: str) -> None:
        raise NotImplementedError

    def _rate(self) -> float:
        return (self._training.env_steps - self._start_step) / max(time.monotonic() - self._start_time, 1e-9)

    def _began(self) -> None:
        pass

    def _show(self) -> None:
        raise NotImplementedError

    def _describe(self) -> str:
        metrics, displayed = self._training.metrics(), ("return_mean", "loss", "critic_loss")
        return "  ".join(f"{name.removesuffix('_mean')} {metrics[name]:.4g}" for name in displayed if name in metrics)


class LineProgress(_TimedProgress):
    """Plain lines, for pipes and log files."""

    seconds = 10.0

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def _show(self) -> None:
        rate, env_steps = self._rate(), self._training.env_steps
        left = max(self._total - env_steps, 0) / max(rate, 1e-9)  # several environments may go a step beyond
        print(
            f"step {env_steps}/{self._total}  {rate:.0f} steps/s  ETA {left:.0f} s  {self._describe()}",
            file=self._stream,
            flush=True,
        )

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    _show_evaluation = note

    def on_evaluation(self, result: EvaluationResult) -> None:
        print(
            f"step {self._training.env_steps}/{self._total}  evaluation: return {result.mean_return:.1f} +- "
            f"{result.std_return:.1f} over {counted(len(result.returns), 'episode')}",
            file=self._stream,
            flush=True,
        )


class BarProgress(_TimedProgress):
    """A live bar with the rate, the remaining time, returns and the loss."""

    seconds = 0.2

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} steps/s"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
            console=Console(stderr=True),
            auto_refresh=False,
        )
        self._task = self._bar.add_task("", total=None, rate=0.0, values="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.refresh()
        self._bar.stop()

    def _began(self) -> None:
        self._bar.update(self._task, total=self._total, completed=self._training.env_steps, refresh=True)

    def _show(self) -> None:
        self._bar.update(
            self._task,
            completed=self._training.env_steps,
            rate=self._rate(),
            values=self._describe(),
            refresh=True,
        )

    def _show_evaluation(self, text: str) -> None:
        self._bar.update(self._task, values=text, refresh=True)

    def note(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.note(text)

    def on_evaluation(self, result: EvaluationResult) -> None:
        self._bar.console.print(
            f"step {self._training.env_steps:>8}  evaluation: return [bold]{result.mean_return:.1f}[/bold] +- "
            f"{result.std_return:.1f}",
            highlight=False,
        )


def choose_progress(quiet: bool = False) -> Progress:
    """Nothing if ``quiet``; a bar if standard error is a terminal; otherwise plain lines."""
    if quiet:
        return Progress()
    return BarProgress() if sys.stderr.isatty() else LineProgress(sys.stderr)
