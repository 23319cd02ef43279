"""`access`: who may come at all."""

from __future__ import annotations

import pytest

from tests.gateway.upstreams import HELLO, OPEN, ask, gateway_to, get, says, status_of, upstream

PROXIES = "identity: {trusted_proxies: [127.0.0.1]}\n"


@pytest.mark.parametrize(
    ("options", "lines", "status"),
    [
        ("{allow: 127.0.0.0/8}", [], 200),
        ("{allow: [10.0.0.0/8, 192.0.2.1]}", [], 403),
        ("{allow: [10.0.0.0/8, 192.0.2.1]}", ["X-Forwarded-For: 192.0.2.1"], 200),
        ("{allow: [10.0.0.0/8, 192.0.2.1]}", ["X-Forwarded-For: 10.1.1.1, 192.0.2.2"], 403),
        ("{deny: '2001:db8::1'}", ["X-Forwarded-For: 2001:db8::1"], 403),
        ("{deny: '2001:db8::1'}", ["X-Forwarded-For: 2001:db8::2"], 200),
        ("{deny: 192.0.2.0/24}", ["X-Forwarded-For: ::ffff:192.0.2.9"], 403),
        ("{allow: header X-Staff}", ["X-Staff: yes"], 200),
        ("{allow: header X-Staff}", [], 403),
        ("{allow: [header X-Staff: yes]}", ["x-staff: yes"], 200),
        ("{allow: [header X-Staff: yes]}", ["X-Staff: no"], 403),
        ("{allow: [header X-Staff: yes]}", ["X-Staff: no", "X-Staff: yes"], 403),
        ("{allow: [header X-Level: 7]}", ["X-Level: 7"], 200),
        ("{deny: [header User-Agent: BadBot]}", ["User-Agent: BadBot"], 403),
        ("{deny: [header User-Agent: BadBot]}", ["User-Agent: GoodBot"], 200),
        ("{deny: [header X-Bot: bad]}", ["X-Bot: good", "X-Bot: bad"], 403),
        ("{deny: [header X-Bot: bad]}", ["X-Bot: bad", "X-Bot: good"], 403),
        ("{deny: [header X-Bot: bad]}", [], 200),
        ("{allow: 127.0.0.1, deny: header X-Bad}", ["X-Bad: 1"], 403),
    ],
)
def test_who_may_come(options: str, lines: list[str], status: int) -> None:
    rules = f"{PROXIES}filters: [access: {options}]\n{OPEN}"
    with upstream(says(HELLO)) as service, gateway_to(service.url, rules) as port:
        answer = ask(port, get("/", *lines))
        assert status_of(answer) == status
        assert len(service.heads) == (status == 200)
        assert (b"application/problem+json" in answer) == (status == 403)
