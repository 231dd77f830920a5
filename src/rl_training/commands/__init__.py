"""The commands of the command line. Torch is imported only by the commands that need it."""
