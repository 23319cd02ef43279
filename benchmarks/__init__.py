"""Diana's figures: how fast, how small, compared with whom. `python -m benchmarks --help`."""
