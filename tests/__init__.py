"""A package, so that `tests.servers` is ours, whatever else that is called `tests` is installed."""
