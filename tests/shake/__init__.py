"""Make tests that fail by timing fail soon: `make shake`, see CONTRIBUTING.md."""
