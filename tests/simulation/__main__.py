"""`python -m tests.simulation SEED...`: play it again, and tell what happened. `--zones`: on machines of several processes."""

from __future__ import annotations

import sys

from tests.simulation.scenario import drawn, drawn_with_zones, play


def main() -> None:
    words = sys.argv[1:]
    draw = drawn_with_zones if "--zones" in words else drawn
    for seed in (int(word) for word in words if word != "--zones"):
        outcome = play(draw(seed))
        print(outcome.scenario)
        print(
            f"  admitted {len(outcome.history)} of {outcome.decisions}, "
            f"granted {outcome.excess_of_granted()}, alone {outcome.excess_alone()}, together {outcome.excess_together()}, "
            f"{outcome.trips_per_decision:.3f} trips per decision, {outcome.share_used():.1%} used"
        )
        for node in outcome.nodes:
            print(f"  {node.name}: {node.counts}, admitted {len(node.history)}")


if __name__ == "__main__":
    main()
