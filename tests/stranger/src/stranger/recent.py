"""An algorithm of somebody else's that keeps a log: rpu in any unit, counted from the oldest that still counts."""

from typing import NamedTuple

from diana.plugins import NO_LOG


class RecentParams(NamedTuple):
    limit: int
    unit_us: int


class Recent:
    """A state is a Log."""

    code = "RC"
    spelling = "recent"
    options = ()
    identity = ()
    examples = ({},)
    keeps_log = True

    def params(self, limit):
        return RecentParams(limit.rpu, limit.unit_us)

    def decide(self, state, params, cost, now):
        log = NO_LOG if state is None else state
        if log.newest - now > 1_000_000:
            log = state = log.clamped(now)
        log = log.after(now - params.unit_us)
        room = max(0, params.limit - log.amount)
        if cost and cost > room:
            never = cost > params.limit
            retry = (
                -1 if never else self._left(log.nth(cost - params.limit + log.amount), params, now)
            )
            return state, (False, room, retry, self._left(log.newest, params, now), 0)
        if cost:
            log = log.append(max(now, log.newest), cost)
        return log, (True, max(0, room - cost), 0, self._left(log.newest, params, now), 0)

    def _left(self, moment, params, now):
        return max(0, moment + params.unit_us - now)

    def moment_of(self, params, outcome, now):
        return now + outcome[3] - params.unit_us  # the newest entry, which may be ahead

    def refund(self, state, params, cost, at, now):
        return state.after(now - params.unit_us).strike(at, cost)

    def promise(self, params, interval_us):
        return params.limit * -(-interval_us // params.unit_us)


recent = Recent()
