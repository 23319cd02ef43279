"""An algorithm of somebody else's: one at a time, at least unit/rpu apart."""

from typing import NamedTuple


class SpacingParams(NamedTuple):
    limit: int
    gap_us: int


class Spacing:
    """A state is (free_at,): the moment from which the next may pass."""

    code = "SP"
    spelling = "spacing"
    options = ()
    identity = ()
    examples = ({},)

    def params(self, limit):
        return SpacingParams(1, -(-limit.unit_us // limit.rpu))

    def decide(self, state, params, cost, now):
        free_at = state[0] if state is not None else now
        if free_at - params.gap_us - now > 1_000_000:
            free_at = now + params.gap_us
            state = (free_at,)
        wait = max(0, free_at - now)
        if not cost:
            return state, (True, int(not wait), 0, wait, 0)
        if wait or cost > 1:
            return state, (False, int(not wait), -1 if cost > 1 else wait, wait, 0)
        return (now + params.gap_us,), (True, 0, 0, params.gap_us, 0)

    def refund(self, state, params, cost, at, now):
        return (now,) if state[0] == at + params.gap_us else state

    def promise(self, params, interval_us):
        return -(-interval_us // params.gap_us)


spacing = Spacing()
