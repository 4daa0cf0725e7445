"""The command line: each command parses, calls the library and prints."""

from archlearn.cli.application import main

__all__ = ["main"]
