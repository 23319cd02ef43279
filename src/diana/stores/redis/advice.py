"""What to write instead, by what a server or a connection to it said."""

from __future__ import annotations

import re

RIGHTS = "the user's rights: docs/howto/redis-tls-and-acl.md has the whole line"
NO_RIGHT = ("NOPERM", "no permissions", "ACL failure", "The user executing the script")
"""In what servers say inside and outside of scripts, each version in words of its own."""
_COMMAND = re.compile(r"(?:run|execute) the '([^']+)' command")


def what_to_write(said: str) -> str:
    """Begins with a semicolon; empty if the message says so itself."""
    if "without any password" in said:
        return "; the server has no password: remove user and password from the URL, such as redis://host:6379"
    if "NOAUTH" in said:
        return "; write the password into the URL, such as redis://:${REDIS_PASSWORD}@host:6379"
    if "WRONGPASS" in said or "invalid password" in said:
        return "; correct the user or the password in the URL (write / as %2F, @ as %40, % as %25)"
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "; name the authority that signed it: ?ssl_ca_certs=/path/of/ca.pem"
    if any(word in said for word in NO_RIGHT):
        found = _COMMAND.search(said)
        right = f"add +{found[1]} to " if found else "see "
        return f"; {right}{RIGHTS}"
    if "connection refused" in said:
        return "; start the server, or correct host and port"
    if "no connection in time" in said:
        return "; is the host right, and does a firewall let this machine through?"
    if "Name or service not known" in said or "not known" in said:
        return "; correct the name of the host"
    return ""
