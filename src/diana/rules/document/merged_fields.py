"""A rule's own fields beside the defaults of the file."""

from __future__ import annotations

from typing import Any

from diana.core.contracts import Algorithm
from diana.core.errors import ConfigError
from diana.core.limit import uses_slots
from diana.core.rule import FilePosition
from diana.rules.document.readers import Field
from diana.rules.document.settings_fields import RuleFields

FIELDS_OF_EVERY_RULE = {
    "actor", "unit", "rpu", "algo", "scope", "cost", "when_down", "mode", "missing", "status", "body", "name",
    "overrides", "allow", "only", "deny", "charge_on", "drop",
}  # fmt: skip


OF_RATES = ("unit", "rpu")
OF_PLACES = ("most", "hold")
"""In their stead, where an algorithm counts how many at once."""


class MergedFields:
    """A rule's own fields, else the file's defaults; and where to point when one is wrong."""

    def __init__(self, own: RuleFields, defaults: dict[str, Field]) -> None:
        self.position = own.position
        self._own = own.fields
        self._defaults = defaults
        self._all = {**defaults, **own.fields} if defaults else own.fields

    def value(self, name: str) -> Any:
        field = self._all.get(name)
        return None if field is None else field.value

    def options(self, algorithm: Algorithm) -> dict[str, Field]:
        """A default that is foreign to the algorithm is meant for other rules."""
        names = algorithm.options
        return {name: field for name, field in self._all.items() if name in names}

    def foreign(self, algorithm: Algorithm) -> dict[str, Field]:
        known = FIELDS_OF_EVERY_RULE | set(algorithm.options)
        if uses_slots(algorithm):
            known = (known | set(OF_PLACES)) - set(OF_RATES)
        return {name: field for name, field in self._own.items() if name not in known}

    def wrong(self, name: str, message: str, position: FilePosition | None = None) -> ConfigError:
        """A mistake at a field; in a default, it says for which rule."""
        field = self._all.get(name)
        at = position or (self.position if field is None else field.position)
        if name not in self._own and field is not None:
            message += f" (in the rule of {self.position.spot})"
        return ConfigError(message, line=at.line, column=at.column, path=at.path)

    def is_own(self, name: str) -> bool:
        """Not one of the defaults, which are for other rules too."""
        return name in self._own

    def has(self, name: str) -> bool:
        return name in self._all
