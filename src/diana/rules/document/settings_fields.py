"""The rules file, field by field: what may stand where.

Two forms. The classic one is a block (`url` and `rules`), a list of blocks, or one per document. The full one is a mapping with `limits`,
a list of blocks, and settings. `compiler.py` makes rules of what is read here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping as Environment
from difflib import get_close_matches
from typing import Any, NamedTuple

from diana.core.client_address import network_from_spelling
from diana.core.errors import ConfigError
from diana.core.policy import RulesFrom
from diana.core.rule import FilePosition
from diana.core.store_url import no_store_url
from diana.rules import check_source
from diana.rules.document.adjustment_fields import override_reader, roster_reader
from diana.rules.document.filter_and_shed_fields import filter_reader, shed_reader
from diana.rules.document.http_methods import methods
from diana.rules.document.readers import (
    STATUS,
    ErrorCollector,
    Field,
    Read,
    UnbuiltField,
    answer_body,
    budget,
    choice,
    fields,
    flag,
    identity_place,
    items,
    lease_ttl,
    listing,
    mapping,
    mistake,
    mount,
    name_in,
    namespace,
    percent,
    placed,
    status,
    text,
    url_pattern,
    whole,
)
from diana.rules.document.rule_fields import MISSING, rule_fields
from diana.rules.document.spelled_limits import implied
from diana.rules.document.yaml_tree import Mapping, Node, Scalar, Sequence, drain
from diana.runtime.entry_points import entries, plugin

SETTINGS = (
    "store", "local_store", "store_budget", "require_store", "namespace", "nodes", "weight", "lease", "rules_from",
    "identity", "missing", "response", "filters",
    "mounts", "dashboard",
)  # fmt: skip
"""Of a node's own file; the rest may come from elsewhere."""
HEADERS = ("ietf", "legacy", "retry-after")

BLOCK_FIELDS = {"url", "rules", "methods", "except", "allow", "only", "deny"}

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


class Block(NamedTuple):
    """A url and its rules."""

    fields: dict[str, Field]
    rules: list[RuleFields]

    def value(self, name: str) -> Any:
        field = self.fields.get(name)
        return None if field is None else field.value


class RuleFields(NamedTuple):
    fields: dict[str, Field]
    position: FilePosition


class RulesFile(NamedTuple):
    blocks: list[Block]
    settings: dict[str, Field]
    defaults: dict[str, Field]


def read_file(
    documents: list[Node], mistakes: ErrorCollector, environment: Environment[str, str]
) -> RulesFile:
    """What the file says; mistakes are collected, not raised."""
    if not documents:
        mistakes.add(
            ConfigError("the file is empty; write at least one url with rules", line=1, column=1)
        )
    schema = _Schema(mistakes, environment)
    return schema.file(documents)


def read_remote(documents: list[Node], mistakes: ErrorCollector) -> RulesFile:
    """What a remote document says. Limits, defaults and `shed` only: an author of rules must not be able to move the counters elsewhere."""
    if not documents:
        mistakes.add(
            ConfigError(
                "the document is empty; write at least one url with rules", line=1, column=1
            )
        )
    found = _Schema(mistakes, {}, local=False).file(
        [_without_settings(node, mistakes) for node in documents]
    )
    return RulesFile(found.blocks, found.settings, found.defaults)


def _without_settings(node: Node, mistakes: ErrorCollector) -> Node:
    """A setting is one mistake, whatever it says: its value is not read."""
    if not isinstance(node, Mapping):
        return node
    rules_only = []
    for key, value in node.pairs:
        if key.text.lower() in SETTINGS:
            said = f"{key.text} is a setting; a remote document holds limits, defaults and shed only: put it into each node's own file"
            mistakes.add(mistake(key, key.text.lower(), said))
        else:
            rules_only.append((key, value))
    return Mapping(node.line, node.column, rules_only)


class _Schema:
    def __init__(
        self, mistakes: ErrorCollector, environment: Environment[str, str], local: bool = True
    ) -> None:
        self._mistakes = mistakes
        self._environment = environment
        self._roster = roster_reader(mistakes, environment if local else None)
        self._rule_fields = {
            **rule_fields(),
            "overrides": override_reader(mistakes),
            "allow": self._roster,
            "only": self._roster,
            "deny": self._roster,
        }
        self._settings: dict[str, Read] = {
            "store": self._store,
            "local_store": self._store,
            "store_budget": budget,
            "require_store": flag,
            "namespace": namespace,
            "nodes": whole(1, 100_000),
            "weight": whole(1, 1_000),
            "lease": self._lease,
            "rules_from": self._rules_from,
            "identity": self._identity,
            "missing": choice(*MISSING),
            "defaults": self._defaults,
            "response": self._response,
            "filters": filter_reader(mistakes),
            "mounts": listing(mount, "prefix"),
            "dashboard": UnbuiltField("dashboard"),
            "shed": shed_reader(
                mistakes, self._roster, self._url if local else _no_url_from_elsewhere
            ),
            "limits": self._blocks,
        }

    def file(self, documents: list[Node]) -> RulesFile:
        first = documents[0] if len(documents) == 1 else None
        if isinstance(first, Mapping) and not _is_block(first):
            for key, _ in first.pairs:
                if key.text.lower() in BLOCK_FIELDS:
                    said = f"{key.text} belongs to a url; put it into the list under limits:"
                    self._mistakes.add(mistake(key, key.text.lower(), said))
                    return RulesFile([], {}, {})
            settings = fields(first, "", self._settings, self._mistakes)
            names = {key.text.lower() for key, _ in first.pairs}
            if "limits" not in names and not get_close_matches("limits", names, 1):
                said = "there are no limits; write limits: and under it a list of urls with rules"
                self._mistakes.add(mistake(first, "limits", said))
            limits = settings.pop("limits", None)
            defaults = settings.pop("defaults", None)
            return RulesFile(
                limits.value if limits else [], settings, defaults.value if defaults else {}
            )
        blocks = []
        for number, document in enumerate(documents):
            path = f"[{number}]" if len(documents) > 1 else ""
            try:
                blocks += self._blocks(document, path)
            except ConfigError as error:
                self._mistakes.add(placed(error, document, path))
        return RulesFile(blocks, {}, {})

    def _blocks(self, node: Node, path: str) -> list[Block]:
        if not isinstance(node, Sequence):
            return [self._block(node, path)]
        if not node.items:
            raise ConfigError("the list is empty; write at least one url with rules")
        blocks = []
        for number, item in enumerate(drain(node.items)):
            if self._mistakes.full:
                break
            here = f"{path}[{number}]"
            try:
                blocks.append(self._block(item, here))
            except ConfigError as error:
                self._mistakes.add(placed(error, item, here))
        return blocks

    def _block(self, node: Node, path: str) -> Block:
        block = mapping(node, "a url with rules")
        readers: dict[str, Read] = {
            "url": url_pattern,
            "methods": methods,
            "except": items(url_pattern, "url"),
            "allow": self._roster,
            "only": self._roster,
            "deny": self._roster,
            "rules": self._rules,
        }
        written = {key.text.lower() for key, _ in block.pairs}
        for key, _ in block.pairs:
            if key.text.lower() in self._settings:
                said = f"{key.text} is a setting; put it beside limits:, and url and rules under limits:"
                if key.text.lower() == "limits":
                    said = "limits stands alone in one file; among several documents or files, write url and rules in each"
                raise mistake(key, path, said)
        found = fields(block, path, readers, self._mistakes)
        for name, said in (
            ("url", "there is no url; write url: and a path such as /"),
            ("rules", "there are no rules; write rules: and under it a list"),
        ):
            if name not in written and not get_close_matches(name, written - set(readers), 1):
                self._mistakes.add(mistake(block, path, said))
        rules = found.pop("rules", None)
        return Block(found, rules.value if rules else [])

    def _rules(self, node: Node, path: str) -> list[RuleFields]:
        if not isinstance(node, Sequence):
            raise ConfigError("rules is a list; write each rule behind a dash (-)")
        if not node.items:
            raise ConfigError("the list is empty; write at least one rule, or remove the url")
        rules = []
        for number, item in enumerate(drain(node.items)):
            if self._mistakes.full:
                break
            here = f"{path}[{number}]"
            try:
                rule = mapping(item, "a rule")
            except ConfigError as error:
                self._mistakes.add(placed(error, item, here))
                continue
            read = fields(rule, here, self._rule_fields, self._mistakes)
            position = FilePosition(rule.line, rule.column, here)
            if len(read) < len(rule.pairs):
                # A field that could not be read is a mistake already, not a missing one.
                written = {key.text.lower(): value for key, value in rule.pairs}
                unread = (set(written) | implied(written)) - set(read)
                read |= {name: Field(None, position) for name in unread}
            rules.append(RuleFields(read, position))
        return rules

    def _defaults(self, node: Node, path: str) -> dict[str, Field]:
        found = fields(mapping(node, "defaults"), path, self._rule_fields, self._mistakes)
        own = found.pop("overrides", None)
        if own is not None:
            said = "overrides belong to one rule: they are values of its actor; put them there"
            self._mistakes.add(placed(ConfigError(said), own.position, own.position.path))
        return found

    def _identity(self, node: Node, path: str) -> dict[str, Field]:
        readers: dict[str, Read] = {
            "account": identity_place,
            "device": identity_place,
            "tier": identity_place,
            "trust_tier": flag,
            "trusted_proxies": listing(
                lambda item, at: network_from_spelling(text(item, at)), "network"
            ),
        }
        return fields(mapping(node, "identity"), path, readers, self._mistakes)

    def _lease(self, node: Node, path: str) -> dict[str, Field]:
        readers: dict[str, Read] = {"start": percent, "ttl": lease_ttl}
        return fields(mapping(node, "lease"), path, readers, self._mistakes)

    def _response(self, node: Node, path: str) -> dict[str, Field]:
        readers: dict[str, Read] = {
            "status": status,
            "headers": _none_or(listing(choice(*HEADERS), "header family")),
            "body": answer_body,
        }
        if isinstance(node, Scalar) and STATUS.fullmatch(node.text):
            raise ConfigError(
                f"response must be a mapping (got {node.text}); write response: {{status: {node.text}}}"
            )
        return fields(mapping(node, "response"), path, readers, self._mistakes)

    def _store(self, node: Node, path: str) -> str:
        url = self._url(node, path)
        scheme, colon, _ = url.lower().partition("://")
        if not colon:
            raise no_store_url(name_in(path), url)
        if scheme not in entries("stores"):
            known = ", ".join(f"{name}://" for name in sorted(entries("stores")))
            # Never the URL itself: it may hold a password.
            raise ConfigError(
                f"there is no store for {scheme}://; write a URL that starts with one of {known}"
            )
        check_url = getattr(plugin("stores", scheme), "check_url", None)
        if check_url is not None:
            check_url(url)
        return url

    def _rules_from(self, node: Node, path: str) -> RulesFrom:
        """A URL, or a mapping of `url` and `keep`: a file for the last good copy."""
        if not isinstance(node, Mapping):
            return RulesFrom(self._source(node, path))
        readers: dict[str, Read] = {"url": self._source, "keep": text}
        found = fields(node, path, readers, self._mistakes)
        if "url" not in found:
            raise ConfigError("rules_from has no url; write url: and the URL of the rules")
        return RulesFrom(found["url"].value, found["keep"].value if "keep" in found else None)

    def _source(self, node: Node, path: str) -> str:
        url = self._url(node, path)
        check_source(url)
        return url

    def _url(self, node: Node, path: str) -> str:
        """A URL, with `${NAME}` taken from the environment."""

        def value(found: re.Match[str]) -> str:
            if found[1] not in self._environment:
                raise ConfigError(
                    f"${{{found[1]}}} is not set in the environment; set it, or write the value"
                )
            return self._environment[found[1]]

        return _VARIABLE.sub(value, text(node, path))


def _no_url_from_elsewhere(*_: Node | str) -> str:
    raise ConfigError(
        "a remote document cannot tell nodes which server to ask; put shed into each node's own file"
    )


def _none_or(read: Read) -> Read:
    """An empty list is meant: none."""

    def read_list(node: Node, path: str) -> Any:
        return [] if isinstance(node, Sequence) and not node.items else read(node, path)

    return read_list


def environment() -> Environment[str, str]:
    return os.environ


def _is_block(node: Mapping) -> bool:
    names = {key.text.lower() for key, _ in node.pairs}
    return "limits" not in names and bool(names & BLOCK_FIELDS)
