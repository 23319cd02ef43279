"""A random configuration that nginx accepts. Some have nothing that is noted, others a little of everything.

Rates are so low that nothing leaks while requests are sent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

SEGMENTS = ("a", "b", "c")
HOSTS = ("a.test", "b.test", "c.test")
STATUSES = (503, 429, 555)
ADDRESSES = tuple(f"127.0.0.{last}" for last in (2, 3, 4, 5, 9, 130))
EXACT_KEYS = (
    "$binary_remote_addr", "$binary_remote_addr", "$remote_addr", "$http_x_key", "$host", "$server_name", "all", "one $http_x_key",
    "$binary_remote_addr$http_x_key", "$remote_addr $http_x_key", "$server_name$binary_remote_addr", "$host$binary_remote_addr",
)  # fmt: skip
NOTED_KEYS = (
    "$uri", "$request_uri", "$arg_item", "$cookie_sid", "$http_host", "$remote_addr$http_x_key", "$http_x_key$http_x_plan",
    "$host$http_x_key", "$request_method",
)  # fmt: skip
MOST_DEPTH = 3


@dataclass
class Zone:
    name: str
    key: str


@dataclass
class Configuration:
    """What stands in http. `{0}`, `{1}`, ... in it are ports."""

    template: str
    ports: int
    paths: list[str] = field(default_factory=list)
    """Those of its locations."""
    delays: bool = False
    """nginx may hold requests back for minutes: they are allowed."""

    def text(self, ports: Sequence[int]) -> str:
        text = self.template
        for number, port in enumerate(ports):
            text = text.replace(f"@{number}@", str(port))
        return text


def random_configuration(chance: random.Random) -> Configuration:
    return _Writer(chance).configuration()


class _Writer:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._is_exact = chance.random() < 0.65
        """Without anything that is noted, as far as it is known beforehand."""
        self._paths: list[str] = []
        self._zones: list[Zone] = []
        self._unused: list[Zone] = []
        self._delays = chance.random() < 0.25

    def configuration(self) -> Configuration:
        ports = self._one(1, 1, 1, 2, 3)
        lines = self._variables()
        for number in range(self._one(1, 2, 3, 4)):
            zone = Zone(f"z{number}", self._key())
            self._zones.append(zone)
            rate = f" rate={self._one(1, 2, 6)}r/m"
            lines.append(f'limit_req_zone "{zone.key}" zone={zone.name}:64k{rate};')
        self._unused = list(self._zones)
        lines += self._level(0.3)
        lines += self._servers(ports)
        return Configuration("\n".join(lines) + "\n", ports, self._paths, self._delays)

    def _one(self, *choices: int) -> int:
        return self._chance.choice(choices)

    def _may(self, share: float) -> bool:
        return self._chance.random() < share

    def _noted(self, share: float) -> bool:
        """Something that is noted."""
        return not self._is_exact and self._may(share)

    def _key(self) -> str:
        if self._noted(0.15):
            return self._chance.choice(NOTED_KEYS)
        return self._chance.choice(
            (*EXACT_KEYS, "$by_map", "$by_map", "$by_geo", "$by_both", "$by_both")
        )

    def _variables(self) -> list[str]:
        """`$by_map`, `$by_geo` and `$by_both`, which keys may be."""
        chance = self._chance
        key = chance.choice(("$binary_remote_addr", "$http_x_key", "all"))
        values = ['1 "";', '2 "";', f"3 {key};", f"default {key};", 'default "";']
        if self._noted(0.3):
            values += [
                "4 $http_x_plan;",
                "gold 1;",
                "~^go 1;",
                '~^go "";',
                f'"" {key};',
                "5 other;",
            ]
        mapped = self._without_duplicates(chance.sample(values, chance.randint(1, len(values))))
        if key == "$http_x_key" and self._may(0.5):
            absent = chance.choice(('""', "$binary_remote_addr", "nobody"))
            mapped = [f'"" {absent};', "default $http_x_key;", '7 "";']
        source = (
            "$http_x_key"
            if "default $http_x_key;" in mapped and len(mapped) == 3
            else "$http_x_plan"
        )
        results = chance.sample(
            ['0 "";', f"1 {key};", f"2 {key};", 'default "";', f"default {key};"], 3
        )
        return [
            f"map {source} $by_map {{ {' '.join(mapped)} }}",
            f"geo $by_geo {{ {' '.join(self._networks(['all', 'few', chr(34) * 2]))} }}",
            f"geo $class {{ {' '.join(self._networks(['0', '1', '2']))} }}",
            f"map $class $by_both {{ {' '.join(self._without_duplicates(results))} }}",
        ]

    def _networks(self, values: list[str]) -> list[str]:
        chance = self._chance
        by_ranges = self._may(0.4)
        networks = [
            "127.0.0.0/24",
            "127.0.0.0/30",
            "127.0.0.4/30",
            "127.0.0.4",
            "127.0.0.8/29",
            "127.0.0.128/25",
            "127.0.0.5",
        ]
        if by_ranges:
            networks = [
                "127.0.0.0-127.0.0.255", "127.0.0.2-127.0.0.5", "127.0.0.3-127.0.0.4", "127.0.0.9-127.0.0.9", "127.0.0.100-127.0.1.0",
            ]  # fmt: skip
            networks = networks[: chance.randint(1, 4)] if self._may(0.7) else networks[1:]
        else:
            networks = chance.sample(networks, chance.randint(1, len(networks)))
        found = [f"{network} {chance.choice(values)};" for network in networks]
        default = [f"default {chance.choice(values)};"] if self._may(0.8) else []
        return [*(["ranges;"] if by_ranges else []), *default, *found]

    def _without_duplicates(self, entries: Iterable[str]) -> list[str]:
        return list({entry.split()[0]: entry for entry in entries}.values())

    def _level(self, share: float) -> list[str]:
        """Limits of one level, or none."""
        if not self._may(share):
            return []
        chance = self._chance
        zones = self._zones
        if self._is_exact and self._may(0.97):
            # A zone in several places is noted, since rules count each place by itself.
            zones = [self._unused.pop() for _ in range(min(len(self._unused), self._one(1, 1, 2)))]
        count = min(len(zones), 1 if self._may(0.8) else 2)
        lines = [
            f"limit_req zone={zone.name}{self._burst()};" for zone in chance.sample(zones, count)
        ]
        if lines and self._may(0.2):
            lines.append(f"limit_req_status {chance.choice(STATUSES)};")
        if lines and self._may(0.1):
            lines.append(f"limit_req_dry_run {chance.choice(('on', 'off'))};")
        return lines

    def _burst(self) -> str:
        burst = self._one(0, 1, 2, 4)
        if not burst:
            return ""
        if not self._delays:
            return f" burst={burst} nodelay"
        return f" burst={burst}" + self._chance.choice(("", " nodelay", " delay=1", " delay=9"))

    def _servers(self, ports: int) -> list[str]:
        chance = self._chance
        blocks: list[str] = []
        defaults: set[int] = set()
        alike = self._is_exact and ports > 1
        for _ in range(self._one(1, 1, 2, 3)):
            listening = (
                range(ports)
                if alike
                else sorted(chance.sample(range(ports), chance.randint(1, ports)))
            )
            lines = []
            default = self._may(0.3)
            for port in listening:
                is_default = default and port not in defaults
                defaults |= {port} if is_default else set()
                lines.append(f"listen 127.0.0.1:@{port}@{' default_server' if is_default else ''};")
            lines += self._names()
            lines += self._level(0.4)
            if self._noted(0.1):
                lines.append("return 301 https://$host$request_uri;")
            lines += self._locations("/", 0, self._server_locations())
            blocks.append(_block("server", lines))
        used = {
            int(part.partition("@")[0])
            for block in blocks
            for part in block.split("127.0.0.1:@")[1:]
        }
        others = [[f"listen 127.0.0.1:@{port}@;"] for port in range(ports) if port not in used]
        return [*blocks, *(_block("server", [*listen, *self._level(0.4)]) for listen in others)]

    def _names(self) -> list[str]:
        names = self._chance.sample(HOSTS, self._one(0, 1, 1, 2))
        if self._noted(0.2):
            names.append(self._chance.choice(("*.test", ".c.test", "b.*", "~^a", "_")))
        return [f"server_name {' '.join(names)};"] if names else []

    def _server_locations(self) -> list[Callable[[str], tuple[str, str]]]:
        count = self._chance.randint(0, 3)
        if self._is_exact:
            return [
                self._chance.choice((_root, _exact_root, _pair, _pair, _nested))
                for _ in range(count)
            ]
        kinds = (
            _root,
            _exact_root,
            _pair,
            _prefix,
            _prefix,
            _exact,
            _partial,
            _final,
            _pattern,
            _odd,
            _nested,
        )
        return [self._chance.choice(kinds) for _ in range(count)]

    def _locations(
        self, around: str, depth: int, kinds: Sequence[Callable[[str], tuple[str, str]]]
    ) -> list[str]:
        """Of a server, or within a prefix: each path once."""
        blocks: dict[tuple[str, str], str] = {}
        for kind in kinds:
            segment = self._chance.choice(SEGMENTS)
            modifier, path = kind(around + segment)
            if path == "/" and around != "/":
                continue
            body = self._body()
            if kind in (_pair, _nested):
                # The same with and without a slash at the end, so that no note is needed.
                blocks.setdefault(("=", path.rstrip("/")), _location("=", path.rstrip("/"), body))
            inner: list[str] = []
            if (
                modifier in ("", "^~")
                and depth < MOST_DEPTH
                and path.endswith("/")
                and self._may(0.4)
            ):
                inner_kinds = [_pair] if self._is_exact else [_prefix, _exact, _pattern, _pair]
                inner = self._locations(path, depth + 1, [self._chance.choice(inner_kinds)])
            key = ("", path) if modifier in ("", "^~") else (modifier, path)
            if key not in blocks:
                blocks[key] = _location(modifier, path, [*body, *inner])
            if modifier not in ("~", "~*"):
                self._paths.append(path)
        return list(blocks.values())

    def _body(self) -> list[str]:
        if self._may(0.08):
            return [
                "return 204;"
                if self._is_exact
                else self._chance.choice(("return 204;", "internal;"))
            ]
        return self._level(0.7)


def _root(_: str) -> tuple[str, str]:
    return "", "/"


def _exact_root(_: str) -> tuple[str, str]:
    return "=", "/"


def _pair(path: str) -> tuple[str, str]:
    return "", f"{path}/"


_nested = _pair


def _prefix(path: str) -> tuple[str, str]:
    return "", f"{path}/"


def _exact(path: str) -> tuple[str, str]:
    return "=", path


def _partial(path: str) -> tuple[str, str]:
    return "", path


def _final(path: str) -> tuple[str, str]:
    return "^~", f"{path}/"


def _pattern(path: str) -> tuple[str, str]:
    return "~" if len(path) % 2 else "~*", r"\.php$"


def _odd(path: str) -> tuple[str, str]:
    return "=" if path.endswith("a") else "", path + ("/*" if path.endswith("a") else "/{x}/")


def _location(modifier: str, path: str, lines: list[str]) -> str:
    return _block(f'location {modifier} "{path}"', lines)


def _block(name: str, lines: Iterable[str]) -> str:
    inner = "\n".join(lines)
    return name + " {\n" + "\n".join(f"  {line}" for line in inner.splitlines()) + "\n}"
