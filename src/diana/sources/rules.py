"""From bytes to a policy, wherever they came from."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from diana.core.errors import ConfigError, SourceError
from diana.core.policy import Policy
from diana.sources.compiler import compile_policy
from diana.sources.document import Node, documents_from_bytes
from diana.sources.file import FileSource
from diana.sources.pauses import let_go
from diana.sources.reader import Mistakes, all_at_once
from diana.sources.schema import RulesFile, environment, read_file, read_remote


def load_rules(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Policy:
    """The rules of a file, as it is now. Whatever is wrong with it is one ConfigError, all mistakes at once."""
    try:
        edition = FileSource(Path(path)).load()
    except SourceError as error:
        raise ConfigError(str(error)) from None
    return rules_from_bytes(edition.text, str(path), environ=environ)


def rules_from_bytes(
    content: bytes, name: str = "rules", *, environ: Mapping[str, str] | None = None
) -> Policy:
    """The rules of a local document: it may hold settings."""
    mistakes = Mistakes(name)
    file = read_file(_documents(content, name), mistakes, environ or environment())
    return _compiled(file, mistakes, content)


def rules_from_remote(
    content: bytes,
    name: str = "rules",
    *,
    local: bytes | None = None,
    environ: Mapping[str, str] | None = None,
) -> Policy:
    """The rules of a remote document: `limits` and `defaults` are its own, all settings those of the local one, which is right."""
    mistakes = Mistakes(name)
    remote = read_remote(_documents(content, name), mistakes)
    if local is not None:
        ours = read_file(_documents(local, name), Mistakes(name), environ or environment())
        remote = RulesFile(remote.blocks, ours.settings, remote.defaults or ours.defaults)
    return _compiled(remote, mistakes, content)


def _documents(content: bytes, name: str) -> list[Node]:
    try:
        return documents_from_bytes(content)
    except ConfigError as error:
        raise all_at_once(name, [error]) from None


def _compiled(file: RulesFile, mistakes: Mistakes, content: bytes) -> Policy:
    policy = compile_policy(file, mistakes, version=sha256(content).hexdigest()[:12])
    let_go(file.blocks)
    mistakes.raise_any()
    return policy
