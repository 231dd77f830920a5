"""Long experiments behind docs/reliability.md; each appends what it saw to ``results`` and can be continued at any time."""
