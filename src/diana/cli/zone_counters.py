"""Counters in a zone of this machine, as commands read and change them."""

from __future__ import annotations

from typing import Any

import click

from diana.cli.found_rule import KnownRule, Terms
from diana.cli.store_admin import Look
from diana.core.counter import CounterSpec, countable
from diana.core.limit_adjustments import Override

NO_RULES = "a zone holds counts and no limits; add --rules FILE, the rules file of the processes that use it"


class ZoneCounters:
    def __init__(self, url: str) -> None:
        self._name = url.partition("://")[2].partition("?")[0].strip("/")
        self._store = open_zone(self._name)
        self.where = f"zone {self._name}"

    def published(self) -> list[KnownRule]:
        raise click.UsageError(NO_RULES)

    def why_nothing(self) -> str:
        return NO_RULES

    def check_rule(self, rule: KnownRule) -> None:
        """A rule of any scope may count there: of scope global without a store, or while the store is lost."""

    def override_of(self, rule: KnownRule, key: str) -> Override | None:  # noqa: ARG002
        return None

    def look(self, rule: KnownRule, terms: Terms, key: str, cost: int) -> Look:  # noqa: ARG002
        allowed, remaining, retry_us, reset_us, _ = self._store.peek([(_meter(terms), key, cost)])[
            0
        ].outcome
        return Look(allowed, remaining, 0 if allowed else retry_us, reset_us)

    def reset(self, rule: KnownRule, key: str) -> bool:
        meter = countable(rule.meter)
        was_there: bool = self._store.peek([(meter, key, 0)])[0].outcome[3] != 0
        self._store.reset(meter, key)
        return was_there

    def override(self, rule: KnownRule, key: str, override: Override | None) -> bool:  # noqa: ARG002
        raise click.ClickException(
            "overrides of all nodes stand in Redis, not in a zone; write overrides: into the rules file"
        )


def open_zone(name: str) -> Any:
    """Only one that exists: looking makes none, and a zone of the other kind is read as what it is."""
    from diana.stores.zone.store import SharedStore
    from diana.stores.zone.zone_file import header_of_zone

    header = header_of_zone(name)
    if header.kind == "replays":
        raise click.ClickException(
            f"zone {name} holds signatures that were used, not counts; diana zone {name} --remove removes it"
        )
    return SharedStore(name, kind=header.kind)


def _meter(terms: Terms) -> CounterSpec:
    if terms.meter is None:
        raise click.UsageError(NO_RULES)
    return terms.meter
