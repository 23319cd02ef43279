"""Faults under load for as long as you like, with exact accounting at the end: `make soak`. Not part of `make test`."""
