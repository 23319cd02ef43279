"""An observer of somebody else's: notes every verdict."""

TALLY = []


class Tally:
    def __call__(self, request, verdict):
        TALLY.append(verdict.allowed)
