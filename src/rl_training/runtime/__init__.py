"""Running things: the training loop, evaluation, prediction, export and plots."""
