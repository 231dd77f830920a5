"""The workers of a pool: one for each environment, in this process or in processes of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable

from rl_training.envs.factory import EnvFactory
from rl_training.envs.workers import (
    CLOSING_TIME,
    SHORT_CLOSING_TIME,
    LocalWorker,
    ProcessWorker,
    Worker,
    close_in_time,
    require_room_for_workers,
)


class WorkerSet:
    """Makes the workers and replaces those that can no longer be used. The first one is always in this process until the set
    is filled, so that the spaces can be read from its environment."""

    def __init__(self, factory: EnvFactory, *, fresh: bool, inline: bool, timeout: float | None) -> None:
        self.inline = inline
        self.make: Callable[[], Worker] = (
            functools.partial(LocalWorker, factory, fresh)
            if inline
            else functools.partial(ProcessWorker, factory, fresh, timeout)
        )
        self.first = LocalWorker(factory, fresh)
        self.workers: list[Worker] = [self.first]

    def fill(self, count: int) -> None:
        """Makes the workers of ``count`` environments."""
        if not self.inline:
            self.workers.pop().close()
            require_room_for_workers(count)
        while len(self.workers) < count:
            self.workers.append(self.make())

    def renew_processes(self) -> None:
        """Replaces all worker processes: after a fault, one may have died, or still have an answer pending."""
        for i, worker in enumerate(self.workers):
            if isinstance(worker, ProcessWorker):
                self._renew(i)

    def living(self, i: int) -> Worker:
        """The worker of environment i; a new one if its process has died."""
        worker = self.workers[i]
        if isinstance(worker, ProcessWorker) and not worker.is_alive():
            self._renew(i)
        return self.workers[i]

    def _renew(self, i: int) -> None:
        self.workers[i].close()
        self.workers[i] = self.make()

    def close(self, *, hanging: bool) -> None:
        """Closes the workers at the same time. Where a call was broken off (``hanging``), closing may hang as well."""
        for worker in self.workers:
            worker.dismiss(SHORT_CLOSING_TIME if hanging else CLOSING_TIME)

        def close() -> None:
            for worker in self.workers:
                worker.close()

        close_in_time(close, hanging=hanging)
