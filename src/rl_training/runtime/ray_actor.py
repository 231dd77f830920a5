"""The actor of a collector, which Ray runs on a node. Importing this does not import torch: the trainer asks for actors
before it has done so itself, and they import it meanwhile."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

from rl_training.version import __version__

if TYPE_CHECKING:
    from rl_training.runtime.stretch_collector import Call, CollectorServer, Reply

#: Ray sends objects of fewer bytes within its messages. Larger ones go through its object store, which takes the trainer half
#: a millisecond.
WITHIN_MESSAGE = 100_000


class Actor:
    """What comes and goes is pickled here: Ray takes longer for several small objects."""

    _server: CollectorServer

    def __init__(self) -> None:
        import rl_training.runtime.stretch_collector  # noqa: F401 - so that nothing is left to import when ``begin`` comes

    def begin(self, content: bytes, state: bytes | None) -> None:
        """Says which collector this is; it is made with the first stretch."""
        from rl_training.runtime.stretch_collector import CollectorServer

        self._server = CollectorServer(content, state)

    def play(self, call: bytes, weights: bytes | None, version: str) -> bytes | Reply | str:
        """Plays a stretch, if the node has the trainer's version; otherwise returns its own. ``weights`` are given if they do
        not come with the call. A large reply is left to Ray, which need not copy its arrays."""
        if version != __version__:
            return __version__
        asked: Call = pickle.loads(call)  # noqa: S301 - from the trainer
        reply = self._server.play(asked if weights is None else asked._replace(weights=weights))
        packed = pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
        return packed if len(packed) < WITHIN_MESSAGE else reply
