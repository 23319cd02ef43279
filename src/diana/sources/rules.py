"""From bytes to a policy, wherever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy, Settings
from diana.sources.document.compiler import compile_policy
from diana.sources.document.joined_files import Origin
from diana.sources.document.reader import Mistakes, all_at_once
from diana.sources.document.schema import SETTINGS, RulesFile, environment, read_file, read_remote
from diana.sources.document.yaml_tree import Mapping as Fields
from diana.sources.document.yaml_tree import Node, documents_from_bytes, free_gradually
from diana.sources.places.file import FileSource


def load_rules(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Policy:
    """The rules of a file, as it is now. Whatever is wrong with it is one ConfigError, all mistakes at once."""
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
    origin = Origin(name, content)
    mistakes = Mistakes(origin)
    file = read_file(_documents(content, origin), mistakes, environ or environment())
    return _compiled(file, mistakes, content, start)


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
    origin = Origin(name, content)
    mistakes = Mistakes(origin)
    remote = read_remote(_documents(content, origin), mistakes)
    if local is not None:
        here = Origin(name, local)
        ours = read_file(_documents(local, here), Mistakes(here), environ or environment())
        remote = RulesFile(remote.blocks, {**ours.settings, **remote.settings}, remote.defaults)
    return _compiled(remote, mistakes, content, start)


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


def _documents(content: bytes, origin: Origin) -> list[Node]:
    try:
        return documents_from_bytes(content)
    except ConfigError as error:
        raise all_at_once(origin, [error]) from None


def _compiled(
    file: RulesFile, mistakes: Mistakes, content: bytes, start: Settings | None
) -> Policy:
    policy = compile_policy(file, mistakes, sha256(content).hexdigest()[:12], start)
    free_gradually(file.blocks)
    mistakes.raise_any()
    return policy
