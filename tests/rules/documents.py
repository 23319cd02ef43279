"""Documents to publish, and what is known of them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from threading import Thread, enumerate

from diana import Request

ANY = Request("GET", "/", peer="203.0.113.9")


def document(rpu: int) -> bytes:
    return (
        f"url: /\nrules: [{{name: day, unit: day, rpu: {rpu}, algo: W, align: first}}]\n".encode()
    )


def version(text: bytes) -> str:
    return sha256(text).hexdigest()[:12]


def local_file(folder: Path, rules_from: str, rpu: int = 1) -> Path:
    """A node's own file, which says where the rules come from."""
    path = folder / "diana.yaml"
    text = f"rules_from: {rules_from}\nlimits:\n  - {document(rpu).decode().replace(chr(10), chr(10) + '    ')}"
    path.write_text(text.rstrip() + "\n")
    return path


def rules_threads() -> list[Thread]:
    """Those that follow rules now."""
    return [thread for thread in enumerate() if thread.name.startswith("diana-rules")]
