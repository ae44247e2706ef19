"""`python -m hyrt` runs the command `hyrt`."""

from hyrt.cli import main

main()
