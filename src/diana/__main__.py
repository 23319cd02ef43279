"""`python -m diana` is `diana`."""

from diana.cli import main

main()
