"""One count for all processes of a machine: `shared://NAME`."""
