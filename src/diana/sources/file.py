"""Rules from a file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.sources.compiler import compile_policy
from diana.sources.document import LARGEST_BYTES, documents_from_bytes
from diana.sources.reader import Mistakes, all_at_once
from diana.sources.schema import environment, read_file


def load_rules(path: str | Path, *, environ: Mapping[str, str] | None = None) -> Policy:
    """The rules of a file. Whatever is wrong with it is one ConfigError, all mistakes at once."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return rules_from_bytes(content, str(path), environ=environ)


def rules_from_bytes(
    content: bytes, name: str = "rules", *, environ: Mapping[str, str] | None = None
) -> Policy:
    """The rules of a document, wherever it came from."""
    mistakes = Mistakes(name)
    try:
        documents = documents_from_bytes(content)
    except ConfigError as error:
        raise all_at_once(name, [error]) from None
    file = read_file(documents, mistakes, environment() if environ is None else environ)
    policy = compile_policy(file, mistakes, version=sha256(content).hexdigest()[:12])
    mistakes.raise_any()
    return policy
