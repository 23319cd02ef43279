"""`python -m tests.simulation SEED...`: play it again, and tell what happened."""

from __future__ import annotations

import sys

from tests.simulation.scenario import drawn, play


def main() -> None:
    for seed in map(int, sys.argv[1:]):
        outcome = play(drawn(seed))
        print(outcome.scenario)
        print(
            f"  admitted {len(outcome.history)} of {outcome.decisions}, {outcome.excess()}, "
            f"{outcome.trips_per_decision:.3f} trips per decision, {outcome.share_used():.1%} used"
        )
        for node in outcome.nodes:
            print(f"  {node.name}: {node.counts}, admitted {len(node.history)}")


if __name__ == "__main__":
    main()
