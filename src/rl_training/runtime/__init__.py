"""The training loop, evaluation, prediction, export and plots."""
