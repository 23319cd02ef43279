"""A store of somebody else's: a plain dictionary, all lines in one book."""

from threading import Lock
from time import time_ns

from diana.plugins import Charge, Decision, checked_cost


class Notebook:
    shared = False

    def __init__(self):
        self._lines = {}
        self._lock = Lock()

    @classmethod
    def from_url(cls, url):
        return cls()

    def bind(self, meter, clock=None):
        def take(key, cost=1):
            now = None if clock is None else clock()
            return self.decide([Charge(meter, key, cost)], now)[0]

        return take

    def decide(self, charges, now=None):
        with self._lock:
            lines = dict(self._lines)
            decisions = self._weigh(lines, charges, now)
            if all(decisions):
                self._lines = lines
                return decisions
            return self._shown(decisions, charges, now)

    def peek(self, charges, now=None):
        with self._lock:
            decisions = self._weigh(dict(self._lines), charges, now)
            return decisions if all(decisions) else self._shown(decisions, charges, now)

    def refund(self, charges, at, now=None):
        with self._lock:
            for meter, key, cost in charges:
                state = self._lines.get((meter.id, key))
                if state is not None:
                    now = now or time_ns() // 1000
                    back = meter.algorithm.refund(state, meter.params, cost, at, now)
                    self._lines[meter.id, key] = back

    def reset(self, meter, key):
        self._lines.pop((meter.id, key), None)

    def close(self):
        pass

    def _weigh(self, lines, charges, now):
        now = time_ns() // 1000 if now is None else now
        decisions = []
        for meter, key, cost in charges:
            checked_cost(cost)
            before = lines.get((meter.id, key))
            after, outcome = meter.algorithm.decide(before, meter.params, cost, now)
            if cost:
                lines[meter.id, key] = after
            decisions.append(Decision(tuple(outcome), meter.params.limit, key, cost, now))
        return decisions

    def _shown(self, decisions, charges, now):
        free = [charge._replace(cost=0) for charge in charges]
        shown = self._weigh(dict(self._lines), free, now)
        return [
            look._replace(cost=decision.cost) if decision else decision
            for decision, look in zip(decisions, shown)
        ]
