"""Whatever a client sends, nginx counts it in the same counters as Python does."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from diana.core.limit_adjustments import LiveOverrides
from diana.core.node_share import Share, Shares
from diana.core.policy import Policy
from diana.core.request import Request
from diana.engine.charge_builder import ChargeBuilder, is_refused
from diana.rules.loading import load_rules
from diana.stores.redis.protocol.wire_format import CounterEncoder
from tests.servers.limiting_nginx import LimitingNginx
from tests.servers.ports import HOST
from tests.servers.server import Server
from tests.servers.waiting import until
from tests.shake.processes import descendants_of
from tests.web.spellings import spellings

RULES = """
identity:
  account: header Authorization
  trusted_proxies: [10.0.0.0/8, 2001:db8:ffff::/48, 192.0.2.7]
mounts: [/api]
limits:
  - url: /
    rules:
      - {name: all, unit: second, rpu: 1000}
      - {name: ip, actor: ip, unit: minute, rpu: 10}
      - {name: account, actor: account, unit: minute, rpu: 10}
      - {name: device, actor: device, unit: minute, rpu: 10, missing: skip}
      - {name: host, actor: host, unit: minute, rpu: 10}
      - {name: path, actor: path, unit: minute, rpu: 10}
      - {name: number, actor: query n as int, unit: minute, rpu: 10, missing: together}
      - {name: query, actor: query sku, unit: minute, rpu: 10}
      - {name: cookie, actor: cookie session, unit: minute, rpu: 10, missing: skip}
      - {name: "odd|%{name}", actor: [ip, header X-Tenant, path], unit: minute, rpu: 10}
      - {name: allowed, actor: ip, unit: minute, rpu: 10, allow: {ip: [198.51.100.0/25], header X-Token: [secret], path: [/export]}}
      - {name: only, actor: ip, unit: hour, rpu: 10, only: {header X-Plan: [free], path: [/users/7]}}
  - {url: /login, methods: [POST, GET], rules: [{name: login, actor: ip, unit: minute, rpu: 5}]}
  - {url: "/search/{q}/y", rules: [{name: search, actor: segment q, unit: minute, rpu: 5}]}
  - {url: "/find/{what}/results", rules: [{name: find, actor: [segment what, ip], unit: minute, rpu: 5}]}
  - {url: "/users/{id}", except: [/users/7/photo, "/users/*/x"], rules: [{name: user, actor: segment id as int, unit: minute, rpu: 5}]}
  - {url: /a/b/*/c, rules: [{name: abc, actor: path, unit: minute, rpu: 5}]}
  - url: /a
    deny: {header X-Tenant: [alice, a|b], path: [/a/b/x], ip: [198.51.100.128/25, "2002::/16"]}
    rules: [{name: listed, actor: ip, unit: minute, rpu: 5, allow: {header X-Token: [secret]}}]
  - url: /users
    rules:
      - {name: seen, actor: ip, unit: minute, rpu: 5, mode: shadow, deny: {header X-Plan: [free], path: [/users/7]}}
      - {name: barred, actor: ip, unit: hour, rpu: 5, deny: {cookie session: [a], "query sku": ["1"]}}
  - {url: /export, methods: [DELETE], rules: [{name: export, actor: header X-Tenant, unit: minute, rpu: 5, missing: together}]}
"""

PEERS = [
    "203.0.113.9", "10.1.2.3", "192.0.2.7", "2001:db8:ffff::1", "2001:db8:1:2:3:4:5:6", "::ffff:10.0.0.1", "::1", "fe80::1%eth0",
    "2002:c000:0204::1", "64:ff9b::192.0.2.33", "198.51.100.1", "198.51.100.200", "unix:", "::", "1:0:0:2::", "0:0:1::2",
]  # fmt: skip
HOPS = [
    "203.0.113.50", "10.9.9.9", "unknown", "", "[2001:db8::7]:8080", "198.51.100.3:99", " 192.0.2.7 ", "01.2.3.4", "2001:db8:ffff::9",
    "1.2.3", "::g", "2001:db8:::1", "300.1.1.1", "x" * 80, "::ffff:1.2.3.4", "1::2::3", "%eth", "1.2.3.4%5",
]  # fmt: skip
VALUES = [
    b"alice", b"", b" alice ", b"Bearer x", b"BEARER  x", b"\xa0nbsp\xa0", b"\xe9t\xe9", b"x" * 300, b"a|b", b"a%{b}", b"secret", b"free",
    b"\xc3\xa9", b"\x85a", b"basic\tZm9v", b"ALICE",
]  # fmt: skip
COOKIES = [
    b"session=a", b"session=a; session=b", b'session="a\\"b"', b'session="\\141b\\351"', b" session = a ; x=1", b"session", b"session=",
    b"session=a; session=a", b'session="', b'session="\\\xe9"',
]  # fmt: skip
QUERIES = [
    "sku=1", "sku=%C3%A9", "sku=%ff", "s%6Bu=1+2", "sku=1&sku=2", "sku=1&sku=1", "n=07", "n=%2B7", "n=+7", "n=-0", "n=1_0", "n=1__0", "n=x",
    "n=%D9%A3", "sku=" + "y" * 70, "sku=%E2%80%A8", "sku=a%00b", "sku=%F0%9F%98%80", "sku", "sku=%E3%80%80z", "&&", "sku=a#f",
    "sku=%ED%A0%80",     "n=" + "9" * 65, "n=" + "0" * 70 + "7.0", "n=-7.00", "n=7.", "n=1_.0", "n=%20%EF%BC%97.0", "n=0-7", "n=0_-_7.0",
    "sku=\xe9", "n=%C2%A07", "sku=a%2Fb",
]  # fmt: skip
HOSTS = [b"Example.COM:80", b"[::1]:80", b"example.com.", b"", b"\xc0b", b"a..", b"[x"]
METHODS = ["GET", "HEAD", "POST", "DELETE", "get"]

Case = tuple[str, bytes, str, list[tuple[bytes, bytes]]]


def cases(count: int, seed: int) -> Iterator[Case]:
    random = Random(seed)
    paths = [path.encode() for path in spellings(count, seed)]
    for path in paths:
        if random.random() < 0.1:
            place = random.randrange(len(path) + 1)
            odd = random.choice([b"\xe9", b"\xc3\xa9", b"%c3%a9", b"%F0%9F%98%80", b"%ed%a0%80"])
            path = path[:place] + odd + path[place:]
        if random.random() < 0.05:
            path = b"http://other.example" + path
        if random.random() < 0.4:
            path += b"?" + random.choice(QUERIES).encode("latin-1")
        headers = [(b"Host", random.choice(HOSTS))]
        for name in (b"Authorization", b"X-Device-Id", b"X-Tenant", b"X-Token", b"X-Plan"):
            headers += [
                (name, random.choice(VALUES)) for _ in range(random.choice([0, 0, 1, 1, 2]))
            ]
        headers += [(b"Cookie", random.choice(COOKIES)) for _ in range(random.choice([0, 1, 2]))]
        for _ in range(random.choice([0, 1, 1, 2])):
            hops = ",".join(random.choice(HOPS) for _ in range(random.randrange(5)))
            headers.append((b"X-Forwarded-For", hops.encode()))
        yield random.choice(METHODS), path, random.choice(PEERS), headers


def by_python(policy: Policy, case: Case) -> list[str]:
    """As an ASGI server would hand the request over."""
    method, target, peer, headers = case
    raw, _, query = target.partition(b"?")
    request = Request(
        method,
        raw.decode("utf-8", "surrogateescape"),
        [(name.decode(), value.decode("latin-1")) for name, value in headers],
        query.partition(b"#")[0].decode("latin-1"),
        peer,
    )
    charging = ChargeBuilder(LiveOverrides(), LiveOverrides(), Shares(Share()))
    match, charges, refusal = charging.charges(policy, request, 0)
    plans = CounterEncoder(lambda _, __: None)
    keys = [
        "deny" if is_refused(charge) else key.decode("utf-8", "surrogatepass")
        for charge, key in zip(charges, plans.keys(charges), strict=True)
    ]
    lines = [f"{rule.name}\t{key}" for rule, key in zip(match.rules, keys, strict=True)]
    return [*lines[:-1], f"{match.rules[-1].name}\trefused"] if refusal else lines


def by_nginx(nginx: LimitingNginx, some: list[Case]) -> list[list[str]]:
    lines = []
    for method, target, peer, headers in some:
        words = [method.encode(), target, peer.encode()]
        words += [word for pair in headers for word in pair]
        lines.append(" ".join(word.hex() or "-" for word in words))
    reply = httpx.post(f"{nginx.url}/-/explain", content="\n".join(lines), timeout=120)
    assert reply.status_code == 200, nginx.log
    said = [bytes.fromhex(line) for line in reply.text.split("\n")[:-1]]
    return [
        [part.decode("utf-8", "surrogatepass") for part in one.split(b"\xff")] if one else []
        for one in said
    ]


@pytest.fixture(scope="module")
def nginx() -> Iterator[LimitingNginx]:
    with LimitingNginx(RULES) as nginx:
        yield nginx


@pytest.mark.parametrize("missing", ["ip", "deny"])
def test_every_spelling_is_counted_in_the_same_counters(
    nginx: LimitingNginx, tmp_path: Path, missing: str
) -> None:
    rules = f"missing: {missing}\n{RULES}"
    file = tmp_path / "diana.yaml"
    file.write_text(rules, encoding="utf-8")
    nginx.export(rules)
    before = set(descendants_of(nginx.pid))
    nginx.reload()
    until(lambda: not before & set(descendants_of(nginx.pid)), "nobody has the rules of before")
    policy = load_rules(file)
    some = list(cases(4_000, 2026))
    wrong = [
        (case, expected, found)
        for case, expected, found in zip(
            some, [by_python(policy, case) for case in some], by_nginx(nginx, some), strict=True
        )
        if expected != found
    ]
    for case, expected, found in wrong[:5]:
        print(case, *set(expected) ^ set(found), sep="\n  ")
    assert not wrong, f"{len(wrong)} of {len(some)} differ"


def test_requests_over_the_wire_come_to_the_same_counters(redis7: Server, tmp_path: Path) -> None:
    """What nginx makes of a request before Lua sees it changes nothing, but for those that it refuses itself."""
    redis7.ask("FLUSHALL")
    # None is denied, and no counter is forgotten before it is looked at.
    rules = re.sub(r"unit: \w+, rpu: \d+", "unit: day, rpu: 500", RULES)
    rules = f"store: {redis7.url}\nstore_budget: 10s\ndefaults: {{scope: global}}\n{rules}"
    file = tmp_path / "diana.yaml"
    file.write_text(rules, encoding="utf-8")
    policy = load_rules(file)
    expected: set[str] = set()
    refused = 0
    with LimitingNginx(rules) as nginx:
        for method, target, _, headers in cases(400, 7):
            # One host, which nginx insists on; and no address that it would not have.
            sent = [(b"Host", b"Example.COM:80"), *headers[1:]]
            status = status_of(nginx, method, target, sent)
            assert status in (200, 400, 403), nginx.log
            refused += status == 400
            if status == 200:
                case = (method, target, "127.0.0.1", sent)
                counted = {line.partition("\t")[2] for line in by_python(policy, case)}
                expected |= counted - {"deny"}
    found = {
        key
        for raw in redis7.ask("KEYS", "*")
        if not (key := bytes(raw).decode("utf-8", "surrogatepass")).startswith("diana:script:")
    }
    assert found == expected
    assert refused < 200


def status_of(
    nginx: LimitingNginx, method: str, target: bytes, headers: list[tuple[bytes, bytes]]
) -> int:
    lines = [method.upper().encode() + b" " + target + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in [*headers, (b"Connection", b"close")]]
    with socket.create_connection((HOST, nginx.port), timeout=60) as connection:
        connection.sendall(b"\r\n".join([*lines, b"", b""]))
        return int(connection.makefile("rb").readline().split()[1])
