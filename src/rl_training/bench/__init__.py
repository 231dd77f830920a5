"""The learning proof: many runs at a time, held against published figures and against the peers."""
