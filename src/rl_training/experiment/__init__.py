"""An experiment as files: its typed config, the registry of algorithms, the run directory and its checkpoints."""
