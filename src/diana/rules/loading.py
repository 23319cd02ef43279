"""From bytes or a mapping to a policy, wherever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from diana.core.errors import ConfigError, SourceError, shown
from diana.core.policy import Policy, Settings
from diana.rules.backends.file import FileSource
from diana.rules.document.compiler import compile_policy
from diana.rules.document.mapping_tree import tree_from_mapping
from diana.rules.document.readers import ErrorCollector, all_at_once
from diana.rules.document.settings_fields import (
    SETTINGS,
    RulesFile,
    environment,
    read_file,
    read_remote,
)
from diana.rules.document.yaml_tree import Mapping as Fields
from diana.rules.document.yaml_tree import Node, SourceMap, documents_from_bytes, free_gradually


def load_rules(
    path: str | Path | Mapping[str, Any], *, environ: Mapping[str, str] | None = None
) -> Policy:
    """The rules of a file, as it is now, or of a mapping. Whatever is wrong is one ConfigError, all mistakes at once."""
    if isinstance(path, Mapping):
        return rules_from_mapping(path, environ=environ)
    if not isinstance(path, str | Path):
        raise ConfigError(
            f"rules must be the path of a file or a mapping (got {shown(path)}); "
            'write load_rules("diana.yaml") or load_rules({"limits": [...]})'
        )
    if "://" in str(path):
        # Never the URL itself: it may hold a password.
        raise ConfigError(
            "rules must be the path of a file or a mapping (got a URL); write Guard.from_file(URL), which also follows changes"
        )
    try:
        edition = FileSource(Path(path)).load()
    except SourceError as error:
        raise ConfigError(str(error)) from None
    return rules_from_bytes(edition.text, str(path), environ=environ)


def rules_from_bytes(
    content: bytes,
    name: str = "rules",
    *,
    environ: Mapping[str, str] | None = None,
    start: Settings | None = None,
) -> Policy:
    """The rules of a local document: it may hold settings. What cannot change while it runs is as it was at the `start`."""
    origin = SourceMap(name, content)
    mistakes = ErrorCollector(origin)
    file = read_file(_documents(content, origin), mistakes, environ or environment())
    return _compiled(file, mistakes, sha256(content).hexdigest(), start)


def rules_from_mapping(
    rules: Mapping[str, Any], name: str = "rules", *, environ: Mapping[str, str] | None = None
) -> Policy:
    """The rules of a mapping: what a file with the same in it says. Later changes of the mapping have no effect."""
    origin = SourceMap(name, b"")
    try:
        node, digest = tree_from_mapping(rules)
    except ConfigError as error:
        raise all_at_once(origin, error.errors) from None
    mistakes = ErrorCollector(origin)
    file = read_file([node], mistakes, environ or environment())
    return _compiled(file, mistakes, digest, None)


def rules_from_remote(
    content: bytes,
    name: str = "rules",
    *,
    local: bytes | None = None,
    environ: Mapping[str, str] | None = None,
    start: Settings | None = None,
) -> Policy:
    """The rules of a remote document: `limits` and `defaults` are its own, all settings those of the local one, which is right.

    Of the settings it may hold `shed`, which then wins over the local one.

    The local defaults are for the local rules: what was checked before it was published means the same on every node.
    """
    origin = SourceMap(name, content)
    mistakes = ErrorCollector(origin)
    remote = read_remote(_documents(content, origin), mistakes)
    if local is not None:
        here = SourceMap(name, local)
        ours = read_file(_documents(local, here), ErrorCollector(here), environ or environment())
        remote = RulesFile(remote.blocks, {**ours.settings, **remote.settings}, remote.defaults)
    return _compiled(remote, mistakes, sha256(content).hexdigest(), start)


def settings_in(content: bytes) -> list[str]:
    """Which settings stand in a document: with one, it is a node's own."""
    try:
        documents = documents_from_bytes(content)
    except ConfigError:
        return []
    written = [key.text for node in documents if isinstance(node, Fields) for key, _ in node.pairs]
    return [name for name in written if name.lower() in SETTINGS]


def is_status_written(content: bytes) -> bool:
    """Whether a document says itself which status denied requests get."""
    return any(
        key.text.lower() == "status"
        for node in documents_from_bytes(content)
        if isinstance(node, Fields)
        for name, value in node.pairs
        if name.text.lower() == "response" and isinstance(value, Fields)
        for key, _ in value.pairs
    )


def _documents(content: bytes, origin: SourceMap) -> list[Node]:
    try:
        return documents_from_bytes(content)
    except ConfigError as error:
        raise all_at_once(origin, [error]) from None


def _compiled(
    file: RulesFile, mistakes: ErrorCollector, digest: str, start: Settings | None
) -> Policy:
    policy = compile_policy(file, mistakes, digest[:12], start)
    free_gradually(file.blocks)
    mistakes.raise_any()
    return policy
