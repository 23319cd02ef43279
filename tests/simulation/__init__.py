"""A fleet in virtual time, from a seed: nodes, a store, a network that loses and delays, clocks that differ.

    world     what happens when: a queue of events, one source of chance
    store     the server: its scripts as pure functions
    node      a process: the real guard, leases, membership, circuit breaker and fallback, on their sans-IO parts
    scenario  what befalls a fleet, drawn from a seed
    checker   what must hold in what was recorded

No thread, no socket and no sleep is in it, so a seed gives the same history every time: `python -m tests.simulation SEED` replays one.
"""
