"""What each command of the command line does. Torch is imported only by the commands that need it."""
