"""`python -m fedlens` is `fedlens`."""

from fedlens.cli import main

main()
