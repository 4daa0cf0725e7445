"""`python -m archlearn.cli` is `archlearn`; torchrun needs a module to start."""

from archlearn.cli import main

main()
