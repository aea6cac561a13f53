"""Finds the wrong KL in other people's code. Parses only: nothing it reads is imported or run."""
