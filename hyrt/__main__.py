"""`python -m hyrt` is `hyrt`."""

from hyrt.cli import main

main()
