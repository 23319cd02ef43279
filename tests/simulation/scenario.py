"""What befalls a fleet, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from random import Random
from typing import Any

from diana import Policy, Request
from diana.core.counter import CounterSpec
from diana.rules.loading import rules_from_bytes
from tests.simulation.checker import Apart, Excess, excess
from tests.simulation.node import Admission, Node
from tests.simulation.store import SimulatedStore
from tests.simulation.world import BEGIN_US, Network, World
from tests.simulation.zone import SimulatedZone

SECOND_US = 1_000_000
ANY = Request("GET", "/")


@dataclass(frozen=True)
class Scenario:
    seed: int
    code: str = "TB"
    rpu: int = 1_000
    burst: int | None = None
    loads: tuple[float, ...] = (1_000.0, 1_000.0)
    """Requests per second of each node."""
    seconds: float = 2.0
    latency_us: tuple[int, int] = (100, 1_000)
    loss: float = 0.0
    when_down: str = "closed"
    skew_us: int = 5 * SECOND_US
    drift_ppm: int = 20
    refunds: float = 0.0
    dies_at_us: dict[int, int] = field(default_factory=dict)
    cut_us: tuple[int, int] | None = None
    processes: tuple[int, ...] = ()
    """Of each node so many, with a zone; none: each node is a process alone. Those who die are processes."""
    stops: tuple[tuple[int, int, int], ...] = ()
    """Which process stands still, from when on, and for how long."""
    emptied_at_us: tuple[int, ...] = ()
    """When all zones forget what they hold."""
    edit: tuple[int, int] | None = None
    """When each node in turn is told of other rules, and what rpu they have."""

    def largest(self) -> tuple[int, int]:
        """The limit and the burst; of two, by an edit, the larger."""
        rpu = max(self.rpu, self.edit[1] if self.edit else 0)
        return rpu, rpu if self.burst is None else self.burst

    def policy(self, rpu: int) -> Policy:
        burst = f", burst: {self.burst}" if self.burst is not None and self.code == "TB" else ""
        rule = f"unit: second, rpu: {rpu}, algo: {self.code}, scope: leased, when_down: {self.when_down}{burst}"
        return rules_from_bytes(f"limits: [{{url: /, rules: [{{{rule}}}]}}]".encode())


@dataclass
class Outcome:
    scenario: Scenario
    nodes: list[Node]

    @property
    def history(self) -> list[Admission]:
        return sorted(one for node in self.nodes for one in node.history)

    @property
    def decisions(self) -> int:
        return sum(len(node.arrivals) for node in self.nodes)

    @property
    def trips_per_decision(self) -> float:
        return sum(node.counts.get("trips", 0) for node in self.nodes) / max(1, self.decisions)

    def share_used(self) -> float:
        """Of what one counter would have let pass that all requests ask at once, without a network."""
        meter = self.scenario.policy(self.scenario.rpu).rules[0].meter
        state, passed = None, 0
        for moment in sorted(moment for node in self.nodes for moment in node.arrivals):
            state, outcome = meter.decide(state, meter.params, 1, BEGIN_US + moment)
            passed += outcome[0]
        return len(self.history) / max(1, passed)

    def excess(self) -> Excess:
        """The worst of what must hold: of the store's grants, of each node alone, and of all together."""
        return max(self.excess_of_granted(), self.excess_alone(), self.excess_together())

    def excess_of_granted(self) -> Excess:
        """What the store granted, by a lease or a charge, keeps the limit whatever is lost."""
        moments = [one.at_us for one in self.history if not one.degraded]
        return excess(self.scenario.code, moments, *self.scenario.largest())

    def excess_together(self) -> Excess:
        """Above what is promised: while the store is there, the larger limit; without it, one more burst and one per node.

        All shares together are one more limit, and each is at least one request. In a unit, no share of a window gives more. Shares of
        a bucket leak as well. While no node reaches the store it grants nothing, so all together leak no more than the limit does. But
        while some reach it, they have the whole rate, and the shares of those that do not come on top, for as long as that lasts.
        """
        scenario, history = self.scenario, self.history
        limit, burst = scenario.largest()
        if not any(one.degraded for one in history):
            return self.excess_of_granted()
        if scenario.code == "TB":
            burst += burst + len(scenario.loads)
            # A reply that is lost while the store is there leaves one request to the node's share, and `excess_alone` counts it.
            history = [one for one in history if not one.lost_reply]
        else:
            # Clocks differ: two windows of a node may lie in one of the store's.
            windows = 2 if scenario.code == "W" else 1
            limit += windows * limit + len(scenario.loads)
        moments = [one.at_us for one in history]
        return excess(scenario.code, moments, limit, burst, apart=self.apart())

    def excess_alone(self) -> Excess:
        """Of the node that is furthest above its share, by its own clock, in what it decided without the store."""
        worst = Excess(-inf, 0)
        scenario = self.scenario
        limit, burst = scenario.largest()
        count = len(scenario.loads)
        lives = 1 + len(scenario.emptied_at_us)  # a zone that forgets begins anew
        for processes in self.machines().values():
            moments = sorted(
                process.clock_at(one.at_us)
                for process in processes
                for one in process.history
                if one.degraded
            )
            unit_us, share = count * SECOND_US, limit
            if scenario.code != "TB":
                unit_us, share = SECOND_US, limit // count * lives
            found = excess(scenario.code, moments, share, max(1, burst // count) * lives, unit_us)
            worst = max(worst, found)
        return worst

    def apart(self) -> list[Apart]:
        """When some nodes had lost the store that others reached, and what their shares are together."""
        scenario = self.scenario
        share = scenario.largest()[0] / len(scenario.loads)
        cut_begin, cut_end = scenario.cut_us or (0, 0)
        moments = {cut_begin, cut_end, *scenario.dies_at_us.values()}
        moments.update(
            moment for node in self.nodes for outage in node.outages for moment in outage
        )
        found = []
        for begin, end in pairwise(sorted(moments)):
            asked = [
                node
                for number, node in enumerate(self.nodes)
                if node.arrivals and begin < scenario.dies_at_us.get(number, end)
            ]
            alone = [node for node in asked if node.was_alone(begin)]
            if 0 < len(alone) < len(asked) and not cut_begin <= begin < cut_end:
                shares = len({node.membership.id for node in alone})
                found.append(Apart(begin, end, shares * share))
        return found

    def machines(self) -> dict[str, list[Node]]:
        """The processes that are a node together."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.membership.id, []).append(node)
        return found


def drawn(seed: int) -> Scenario:
    """Small and mean: a few nodes, a few hundred requests, and one or several things that go wrong."""
    chance = Random(f"scenario {seed}")
    code = chance.choice(("TB", "W", "SW"))
    rpu = chance.choice((20, 60, 150, 300))
    nodes = chance.randint(1, 5)
    total = rpu * chance.choice((0.7, 1.0, 2.0, 4.0))
    weights = [chance.choice((0, 1, 1, 10, 100)) for _ in range(nodes)]
    weights[0] = weights[0] or 1
    loads = tuple(total * weight / sum(weights) for weight in weights)
    found: dict[str, Any] = {}
    if chance.random() < 0.5:
        found["loss"] = chance.choice((0.01, 0.05, 0.2))
    if chance.random() < 0.4 and nodes > 1:
        found["dies_at_us"] = {chance.randrange(nodes): chance.randrange(100_000, 1_500_000)}
    if chance.random() < 0.3:
        begin = chance.randrange(100_000, 1_200_000)
        found["cut_us"] = (begin, begin + chance.choice((30_000, 300_000, 1_000_000)))
    if chance.random() < 0.3:
        found["edit"] = (
            chance.randrange(100_000, 1_500_000),
            max(20, rpu // 2 if chance.random() < 0.5 else 2 * rpu),
        )
    if chance.random() < 0.3:
        found["refunds"] = 0.1
    if code == "TB" and chance.random() < 0.5:
        found["burst"] = chance.choice((1, rpu // 4, 2 * rpu))
    if chance.random() < 0.3:
        found["latency_us"] = chance.choice(((100, 200), (1_000, 40_000), (100, 20_000)))
    if chance.random() < 0.4:
        found["when_down"] = "local"
    return Scenario(seed, code, rpu, loads=loads, seconds=chance.choice((1.3, 2.0)), **found)


def drawn_with_zones(seed: int) -> Scenario:
    """The same, on machines of several processes, of which some are killed."""
    chance = Random(f"zones {seed}")
    scenario = drawn(seed)
    processes = tuple(chance.randint(1, 4) for _ in scenario.loads)
    killed = chance.sample(range(sum(processes)), chance.randint(0, sum(processes) // 2))
    return replace(
        scenario,
        processes=processes,
        dies_at_us={number: chance.randrange(100_000, 1_500_000) for number in killed},
        stops=tuple(
            (
                chance.randrange(sum(processes)),
                chance.randrange(100_000, 1_200_000),
                chance.choice((20_000, 200_000, 700_000)),
            )
            for _ in range(chance.choice((0, 1, 3, 8)))
        ),
        emptied_at_us=(chance.randrange(100_000, 1_500_000),) if chance.random() < 0.2 else (),
    )


def play(scenario: Scenario) -> Outcome:
    world = World(scenario.seed)
    network = Network(world, scenario.latency_us, scenario.loss)
    before = scenario.policy(scenario.rpu)
    after = scenario.policy(scenario.edit[1]) if scenario.edit else before
    told: dict[str, CounterSpec] = {}
    store = SimulatedStore(world, told.__getitem__)
    count = len(scenario.loads)
    nodes: list[Node] = []
    loads: list[float] = []
    for number, load in enumerate(scenario.loads):
        name = f"node {number}"
        store.register(name)
        skew = world.chance.randint(0, scenario.skew_us)
        drift = world.chance.randint(-scenario.drift_ppm, scenario.drift_ppm)
        zone, names = None, [name]
        if scenario.processes:
            zone = SimulatedZone(name, world)
            names = [f"{name}.{one}" for one in range(scenario.processes[number])]
            for at_us in scenario.emptied_at_us:
                world.after(at_us, zone.forget)
        for one in names:
            told[one] = before.rules[0].meter
            nodes.append(Node(one, world, store, network, before, count, skew, drift, zone))
            loads.append(load / len(names))
    for node, load in zip(nodes, loads, strict=True):
        if load:
            _send_requests(world, node, load, scenario.refunds)
    for number, at_us in scenario.dies_at_us.items():
        world.after(at_us, nodes[number].die)
    for number, at_us, for_us in scenario.stops:
        world.after(at_us, partial(nodes[number].stand_still, for_us))
    if scenario.cut_us is not None:
        world.after(scenario.cut_us[0], lambda: setattr(network, "is_cut", True))
        world.after(scenario.cut_us[1], lambda: setattr(network, "is_cut", False))
    if scenario.edit is not None:

        def edit(node: Node) -> None:
            node.edit(after)
            told[node.name] = after.rules[0].meter

        for node in nodes:
            delay = scenario.edit[0] + world.chance.randint(0, 300_000)
            world.after(delay, partial(edit, node))
    world.run(int(scenario.seconds * SECOND_US))
    for node in nodes:
        node.end_outage()
    return Outcome(scenario, nodes)


def _send_requests(world: World, node: Node, load: float, refunds: float) -> None:
    def request() -> None:
        if node.is_dead:
            return
        refunded = refunds and world.chance.random() < refunds
        node.request(ANY, world.chance.randint(0, 100_000) if refunded else None)
        world.after(int(world.chance.expovariate(load) * SECOND_US), request)

    world.after(int(world.chance.expovariate(load) * SECOND_US), request)


def without_faults(scenario: Scenario) -> Scenario:
    return replace(scenario, loss=0.0, dies_at_us={}, cut_us=None, edit=None, refunds=0.0)
