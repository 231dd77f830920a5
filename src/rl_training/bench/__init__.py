"""The learning benchmark: many runs in parallel, compared with published figures and with the peers."""
