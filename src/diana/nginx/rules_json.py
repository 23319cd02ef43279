"""Rules as nginx takes them: JSON with everything worked out that can be, so that Lua knows no YAML, no spelling, no arithmetic of limits.

A field of a rule is in it, or the rule is refused with a reason: nothing is ever quietly left out. Of secrets, such as
`allow: {header X-Token: …}` and overrides by account, only digests are in it, as in the policy itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from typing import Any, cast

from diana.actors import actor_named, conversion_from_argument
from diana.actors.header import CREDENTIALS
from diana.core.actor import CODE
from diana.core.allow_lists import AllowList
from diana.core.counter import CounterSpec
from diana.core.errors import ConfigError
from diana.core.limit_adjustments import LiveOverrides
from diana.core.node_share import divided
from diana.core.policy import Policy, RulesFrom, Settings
from diana.core.rule import Body, FilePosition, Rule
from diana.core.url_pattern import Url
from diana.responses.ratelimit_headers import AT_ONCE, policy_item, policy_name, quoted
from diana.stores.redis.protocol.scripts import keeps_log, slowest_params, wire_limit
from diana.stores.redis.protocol.wire_format import wire_text

FORMAT = 1
ALGORITHMS = ("TB", "LB", "W", "SW", "SL")
"""Those of which Lua knows how a charge is given back."""
ACTORS = ("all", "ip", "host", "path", "header", "query", "cookie", "segment", "account", "device")
BY_CODE = (
    "{kind}: the application's code finds it (identity: {{{kind}: code}}), and nginx does not run it; "
    "write identity: {{{kind}: {where}}}"
)
DEFAULT_IDENTITY = {"account": "header X-Account-Id", "device": "header X-Device-Id"}

_LOGIN = re.compile(r"://[^/?]*@")


def wire_rules(policy: Policy, has_store: bool = True, stored: LiveOverrides | None = None) -> str:
    """ConfigError if a rule says what nginx cannot obey to the letter. Without a store, rules of scope global count in nginx.

    `stored`: overrides that stand in the store.
    """
    if not has_store:
        rules = [
            replace(rule, scope="local") if rule.scope == "global" else rule
            for rule in policy.rules
        ]
        policy = Policy(
            rules, exempt=policy.exempt, settings=policy.settings, version=policy.version
        )
    reasons = list(refusals(policy))
    if reasons:
        raise ConfigError("\n".join(reasons))
    settings = policy.settings
    answer = settings.answer
    document: dict[str, Any] = {
        "format": FORMAT,
        "version": policy.version,
        "trusted_proxies": [str(network) for network in settings.proxies.networks],
        "mounts": [list(mount) for mount in settings.mounts if mount],
        "answer": {
            "status": answer.status,
            "headers": dict.fromkeys(answer.headers, True),
            "body": _body(answer.body),
        },
        "phrases": {str(status.value): status.phrase for status in HTTPStatus},
        "exempt": [{"url": _url(url), "block": block} for url, block in policy.exempt],
        "rules": [_rule(rule, settings, stored or LiveOverrides()) for rule in policy.rules],
    }
    if settings.identity.get("tier", CODE) != CODE:
        document["tier"] = _identity("tier", settings)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def rules_key(namespace: str, rules_from: RulesFrom | None) -> str:
    """Fleets with rules of their own may share a namespace: they are told apart by where their rules come from."""
    if rules_from is None:
        return f"{namespace}:rules:nginx"
    place = _LOGIN.sub("://", rules_from.url)
    return f"{namespace}:rules:nginx:{sha256(place.encode()).hexdigest()[:16]}"


def wire_version(text: str) -> str:
    """Another for every other text."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def refusals(policy: Policy) -> Iterator[str]:
    """What nginx could not obey, each with its rule, its place and the reason."""
    if policy.settings.shed:
        yield "shed: nginx knows nothing of the load of the machines behind it; leave it to the nodes, in a file of their own"
    for rule in policy.rules:
        for reason in _refusals_of(rule, policy.settings):
            yield f"{_where(rule.position)}rule {rule.name!r}: {reason}"


def _refusals_of(rule: Rule, settings: Settings) -> Iterator[str]:
    algorithm = rule.meter.algorithm
    code = algorithm.code
    if rule.scope not in ("local", "global"):
        yield f"scope: {rule.scope} is for nodes that know of each other; write scope: global or local"
    if rule.charge_on is not None:
        yield "charge_on is settled when the answer is known, and nginx asks before; remove it, or leave this rule to the nodes"
    if rule.functions is not None:
        yield "code decides for it, and nginx does not run it"
    if code not in ALGORITHMS:
        yield f"algo: {code} is not known there; write one of {', '.join(ALGORITHMS)}"
    elif keeps_log(algorithm):
        if rule.scope == "local":
            yield f"algo: {code} keeps a log, which nginx has no memory for; write scope: global, or algo: SW"
        elif rule.when_down == "local":
            yield f"algo: {code} keeps a log, which nginx cannot count in while the store is lost; write when_down: open or closed"
    for spelling in _spellings(rule):
        reason = _why_not_actor(spelling, settings)
        if reason is not None:
            yield reason
    if rule.tiers is not None and settings.identity.get("tier") == CODE:
        yield BY_CODE.format(kind="tier", where="header X-Plan, trust_tier: true")
    if rule.tiers is not None and "tier" not in settings.identity:
        yield "it has tiers, and identity: tier: does not say where a request's tier is found; write it"


def _spellings(rule: Rule) -> list[str]:
    """Of the actors that a rule counts by, and of those on its lists."""
    rosters = (*rule.allow, *rule.only, *rule.deny)
    listed = [entry.spelling for roster in rosters for entry in roster.entries]
    return [*rule.actor.split(" + "), *listed]


def _why_not_actor(spelling: str, settings: Settings) -> str | None:
    word, _ = actor_named(spelling)
    if word not in ACTORS:
        return f"actor: {word} is a plug-in's, and nginx does not run it"
    if word in DEFAULT_IDENTITY:
        if _identity_spelling(word, settings) == CODE:
            return BY_CODE.format(kind=word, where="header X-User")
        return _why_not_actor(_identity_spelling(word, settings), settings)
    return None


def _where(position: FilePosition | None) -> str:
    return (
        ""
        if position is None or not position.line
        else f"line {position.line}, column {position.column}: "
    )


def _rule(rule: Rule, settings: Settings, stored: LiveOverrides) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": rule.name,
        "quoted": quoted(rule.name),
        "json_name": json.dumps(policy_name(rule.name)),
        "url": _url(rule.url),
        "block": rule.block,
        "actors": [_actor(one, rule.url, settings) for one in rule.actor.split(" + ")],
        "reads_path": rule.reads_path,
        "id": wire_text(rule.meter.id).decode("utf-8", "surrogatepass"),
        "meter": _meter(rule, rule.meter, settings),
        "scope": rule.scope,
        "cost": rule.cost,
        "missing": rule.missing,
        "when_down": rule.when_down,
        "mode": rule.mode,
    }
    if rule.methods is not None:
        found["methods"] = dict.fromkeys(sorted(rule.methods), True)
    if rule.status is not None:
        found["status"] = rule.status
    if rule.body is not None:
        found["body"] = _body(rule.body)
    if rule.drop is not None:
        found["drop"] = rule.drop
    if rule.tiers is not None:
        tiers = rule.tiers.meters.items()
        found["tiers"] = {tier: _meter(rule, meter, settings) for tier, meter in tiers}
    if rule.overrides:
        found["overrides"] = {
            key: _override(rule, one.meter, one.until_us, settings)
            for key, one in rule.overrides.items()
        }
    live_overrides = stored.of_rule(rule)
    if live_overrides:
        # One that is not for this algorithm changes nothing.
        found["stored"] = {
            key: _override(rule, meter, live.until_us, settings)
            for key, live in live_overrides.items()
            if (meter := live.make_ready(rule.meter)) is not None
        }
    for name, rosters in (("allow", rule.allow), ("only", rule.only), ("deny", rule.deny)):
        if rosters:
            found[name] = [_roster(roster, rule.url, settings) for roster in rosters]
    return found


def _override(
    rule: Rule, meter: CounterSpec, until_us: int | None, settings: Settings
) -> dict[str, Any]:
    found: dict[str, Any] = {"meter": _meter(rule, meter, settings)}
    if until_us is not None:
        found["until_us"] = until_us
    return found


def _meter(rule: Rule, meter: CounterSpec, settings: Settings) -> dict[str, Any]:
    """A limit as the script takes it, as the kernels do, and what header lines say of it."""
    wire = wire_limit(meter) or b""
    found: dict[str, Any] = {
        **_numbers(meter),
        "wire": wire.decode(),
        "limit": meter.params.limit,
        "rpu": meter.limit.rpu,
        "unit_us": meter.limit.unit_us,
        "policy": policy_item(rule, meter),
        "pace": list(getattr(meter.params, "pace", AT_ONCE)),
    }
    if rule.scope == "global" and rule.when_down == "local" and not meter.denies_all:
        found["share"] = _numbers(divided(meter, settings.nodes or 1))
    return found


def _numbers(meter: CounterSpec) -> dict[str, Any]:
    """None of a limit of 0, which no kernel is asked about."""
    if meter.denies_all:
        return {}
    params: Any = meter.params
    found = {"code": meter.algorithm.code, "numbers": list(params.numbers)}
    for slowest in cast("tuple[Any, ...]", slowest_params(meter)):
        found["slowest"] = list(slowest.numbers)
    return found


def _url(url: Url) -> list[str | bool]:
    """Its segments; false for one that is anything."""
    return [False if segment is None else segment for segment in url.segments]


def _body(body: Body) -> dict[str, str]:
    return {kind: words for kind, words in body._asdict().items() if words is not None}


def _roster(roster: AllowList, url: Url, settings: Settings) -> list[dict[str, Any]]:
    return [
        {"networks": sorted(entry.values)}
        if entry.spelling == "ip"
        else {"actor": _actor(entry.spelling, url, settings), "keys": sorted(entry.values)}
        for entry in roster.entries
    ]


def _identity_spelling(kind: str, settings: Settings) -> str:
    spelling: str = settings.identity.get(kind) or DEFAULT_IDENTITY[kind]
    return spelling


def _identity(kind: str, settings: Settings) -> dict[str, Any]:
    """Of `identity`: where an account, a device or a tier is found."""
    return _actor(_identity_spelling(kind, settings), Url("/", (), ()), settings)


def _actor(spelling: str, url: Url, settings: Settings) -> dict[str, Any]:
    word, actor = actor_named(spelling)
    argument = spelling.strip().partition(" ")[2].strip()
    if word in DEFAULT_IDENTITY:
        found = _identity(word, settings)
    else:
        found = {"kind": word}
        if word == "header":
            found["name"] = argument.lower()
            if found["name"] in CREDENTIALS:
                found["credential"] = True
        elif word == "cookie":
            found["name"] = argument
        elif word in ("query", "segment"):
            name, _ = conversion_from_argument(argument)
            if name != argument:
                found["as_int"] = True
            if word == "query":
                found["name"] = name
            else:
                found["place"] = dict(url.captures)[name] + 1
    found["secret"] = actor.secret
    found["reads_path"] = actor.reads_path
    return found
