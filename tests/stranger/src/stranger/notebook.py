"""A store of somebody else's: a plain dictionary, all lines in one book."""

from threading import Lock
from time import time_ns

from diana.plugins import Charge, decide_all_or_nothing


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
            decisions, after = self._weigh(charges, now)
            for (meter, key, _), state in zip(charges, after):
                if state is not None:
                    self._lines[meter.id, key] = state
            return decisions

    def peek(self, charges, now=None):
        with self._lock:
            return self._weigh(charges, now)[0]

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

    def _weigh(self, charges, now):
        states = [self._lines.get((meter.id, key)) for meter, key, _ in charges]
        return decide_all_or_nothing(charges, states, time_ns() // 1000 if now is None else now)
