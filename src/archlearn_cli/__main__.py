"""`python -m archlearn_cli` is `archlearn`; torchrun needs a module to start."""

from archlearn_cli import main

main()
