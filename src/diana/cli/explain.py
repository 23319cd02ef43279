"""`diana explain`: what would the rules do with this request, and why?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from diana.cli.output import Line, echo_json, format_option, say, styled
from diana.core.client_address import ip_from_text
from diana.core.counter import CounterSpec
from diana.core.decision import Decision
from diana.core.duration import SECOND_US
from diana.core.errors import ConfigError
from diana.core.limit import ConcurrencyLimit
from diana.core.node_share import Share
from diana.core.path_readings import PathReading, path_of_segments
from diana.core.policy import Policy
from diana.core.request import Request, printable
from diana.core.rule import Rule
from diana.engine.charge_builder import NO_IDENTITY
from diana.guard import Guard
from diana.rules.document.http_methods import why_unknown
from diana.rules.loading import load_rules

_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("method")
@click.argument("url")
@click.option("-H", "--header", "headers", multiple=True, help="A header, as 'Name: value'.")
@click.option(
    "--account", help="The account that the application finds (identity: {account: code})."
)
@click.option("--device", help="The device that it finds.")
@click.option("--tier", help="The tier that it finds.")
@click.option("--peer", default="203.0.113.9", show_default=True, help="The address it comes from.")
@format_option
def explain(
    file: Path,
    method: str,
    url: str,
    headers: tuple[str, ...],
    account: str | None,
    device: str | None,
    tier: str | None,
    peer: str,
    form: str,
) -> None:
    """Show which rules of FILE a request meets, and why.

    In their order, with the keys that are counted.

    Counters are empty: it is the first request of the day. No store is asked.
    """
    _check_request(file, method, url, peer)
    try:
        guard = Guard(load_rules(file), "memory://")
    except ConfigError as error:
        raise click.ClickException(f"these rules cannot be used:\n{error}") from None
    pairs = [_pair(header) for header in headers]
    if not url.startswith("/"):
        try:
            target = urlsplit(url)
        except ValueError as error:
            raise click.UsageError(f"{url!r} is no url: {error}") from None
        pairs.append(("Host", target.netloc))
        url = f"{target.path or '/'}?{target.query}"
    path, _, query = url.partition("?")
    request = Request(method.upper(), path, pairs, query, peer)
    found = {"account": account, "device": device, "tier": tier}
    request.identities = {kind: value for kind, value in found.items() if value is not None}
    unknown = why_unknown(request.method)
    if unknown is not None:
        say(f"warning: METHOD: {unknown}", err=True)
    if form == "json":
        echo_json(json_of_explanation(guard, request))
    else:
        for line in drawn(guard, request):
            say(*line)


def _check_request(file: Path, method: str, url: str, peer: str) -> None:
    """UsageError if an argument cannot be what its place says."""
    if not _METHOD.fullmatch(method):
        swapped = f"; METHOD comes before URL: diana explain {file} {url} {method}"
        raise click.UsageError(
            f"METHOD must be a method of HTTP, such as GET (got {method!r})"
            + (swapped if _METHOD.fullmatch(url) else "")
        )
    if not (url.startswith("/") or "://" in url):
        raise click.UsageError(
            f"URL must be a path or begin with http:// (got {url!r}); write one such as /{url}"
        )
    if ip_from_text(peer) is None:
        raise click.UsageError(
            f"--peer must be an IP address (got {peer!r}); write one such as 127.0.0.1"
        )


def json_of_explanation(guard: Guard, request: Request) -> dict[str, Any]:
    verdict = guard.check(request)
    others = [rule for rule in guard.policy.rules if not _is_in(rule, verdict.rules)]
    return {
        "method": printable(request.method),
        "path": printable(request.path),
        "read_as": printable(path_of_segments(request.segments)),
        "peer": printable(request.peer or ""),
        "allowed": verdict.allowed,
        "delay": verdict.delay,
        "listed": verdict.listed,
        "rules": [
            _json_of_rule(rule, meter, decision, verdict.listed_by(rule, decision))
            for rule, meter, decision in zip(
                verdict.rules, verdict.meters, verdict.decisions, strict=True
            )
        ],
        "not_asked": [
            {
                "name": rule.name,
                "line": _line_number(rule),
                "why": guard.policy.why_not(rule, request),
            }
            for rule in others
        ],
    }


def _is_in(rule: Rule, rules: tuple[Rule, ...]) -> bool:
    return any(rule is one for one in rules)


def _json_of_rule(
    rule: Rule, meter: CounterSpec, decision: Decision, listed: str | None
) -> dict[str, Any]:
    return {
        "name": rule.name,
        "line": _line_number(rule),
        "url": rule.url.spelling,
        "methods": sorted(rule.methods) if rule.methods else None,
        "actor": rule.actor,
        "key": decision.key,
        "limit": str(meter.limit),
        "why_limit": _why_limit(rule, meter) or None,
        "charge_on": rule.charge_on.spelling if rule.charge_on else None,
        "algo": rule.meter.algorithm.code,
        "scope": rule.scope,
        "drop": rule.drop,
        "mode": rule.mode,
        "listed": listed,
        "cost": decision.cost,
        "allowed": decision.allowed,
        "most": decision.limit,
        "remaining": decision.remaining,
    }


def drawn(guard: Guard, request: Request) -> Iterator[Line]:
    verdict = guard.check(request)
    readings = guard.policy.readings(request)
    paths = [printable(path_of_segments(reading)) for reading in readings]
    yield (
        f"{printable(request.method)} {printable(request.path)} from {printable(request.peer or '')}",
    )
    if not paths:
        yield ("│  it may be read in too many ways: every rule applies whose words are all in it",)
    elif paths != [request.path]:
        yield (f"│  read as {' and as '.join(paths)}",)
    for kind in guard.policy.settings.found_by_code:
        if kind not in (request.identities or {}):
            yield (f"│  its {kind} is found by the application's code; --{kind} says which",)
    for number, (rule, meter, decision) in enumerate(
        zip(verdict.rules, verdict.meters, verdict.decisions, strict=True), 1
    ):
        yield ("│",)
        yield (f"├─ {number}. ", styled(rule.name, bold=True), _line(rule))
        lines = _described(rule, meter, decision, request, readings, guard.share)
        listed = verdict.listed_by(rule, decision)
        if listed is not None:
            lines = _denied_by_list(rule, listed)
        yield from (("│     ", *line) for line in lines)
    if not verdict.rules:
        yield ("│",)
        yield ("├─ no rule is asked",)
    yield ("│",)
    outcome = styled("passes", "green") if verdict else styled("is denied", "red")
    yield ("╰─▶ ", outcome, f" after {verdict.delay:g} s" if verdict.delay else "")
    yield from _left_out(guard.policy, verdict.rules, request)


def _described(
    rule: Rule,
    meter: CounterSpec,
    decision: Decision,
    request: Request,
    readings: tuple[PathReading, ...],
    share: Share,
) -> Iterator[Line]:
    covered = [path_of_segments(one) for one in readings if rule.url.covers_path(one)]
    path = covered[0] if covered else request.path
    methods = f", {', '.join(sorted(rule.methods))} only" if rule.methods else ""
    yield (f"url     {rule.url.spelling} covers {printable(path)}{methods}",)
    yield (f"actor   {rule.actor}, counted by the key {decision.key!r}{_why(rule, decision)}",)
    why = _why_limit(rule, meter)
    in_words = f"{_in_words(meter)} ({why})" if why else _in_words(meter)
    yield (f"limit   {meter.limit}, {meter.algorithm.spelling}: {in_words}",)
    shadow = ", in the shadow: only reported" if rule.mode == "shadow" else ""
    yield (f"scope   {rule.scope}{_whose_part(rule, share)}{shadow}",)
    if decision.cost != 1:
        yield (f"cost    {decision.cost}",)
    if rule.charge_on is not None:
        yield (f"charge  answers with {rule.charge_on.spelling}; for others it is given back",)
    if rule.drop is not None:
        yield (f"drop    {rule.drop}: above twice the limit, chance decides who asks",)
    left = f"{decision.remaining} of {decision.limit} left"
    yield ("says    ", styled(f"✓ {left}", "green") if decision else styled("✗ denied", "red"))


def _denied_by_list(rule: Rule, listed: str) -> Iterator[Line]:
    yield (f"url     {rule.url.spelling}",)
    yield (f"deny    its deny list has the request's {listed}; nothing is counted",)
    shadow = ", in the shadow: only reported" if rule.mode == "shadow" else ""
    yield ("says    ", styled("✗ denied with 403", "red"), shadow)


def _whose_part(rule: Rule, share: Share) -> str:
    if rule.scope != "divided":
        return ""
    return f": of {rule.meter.limit}, this node has {share} parts"


def _why(rule: Rule, decision: Decision) -> str:
    if decision.key.startswith(NO_IDENTITY):
        return f" (it has none; missing: {rule.missing})"
    if decision.key.startswith("#"):
        return " (a digest)"
    return ""


def _why_limit(rule: Rule, meter: CounterSpec) -> str:
    """Why it is not the number that stands first."""
    if any(meter is one.meter for one in rule.overrides.values()):
        return "an override"
    if rule.tiers is None:
        return ""
    for tier, of_tier in rule.tiers.meters.items():
        if meter is of_tier:
            return f"tier {tier}"
    return "tier else"


def _in_words(meter: CounterSpec) -> str:
    limit, most = meter.limit, meter.params.limit
    if isinstance(limit, ConcurrencyLimit):
        return f"at most {most} at once; a place whose process died is free after {limit.unit_us / SECOND_US:g} s"
    if meter.denies_all:
        return "every request is denied"
    every_s = limit.unit_us / limit.rpu / SECOND_US
    return f"at most {most} at once, on average one every {every_s:.3g} s"


def _left_out(policy: Policy, asked: tuple[Rule, ...], request: Request) -> Iterator[Line]:
    others = [rule for rule in policy.rules if not _is_in(rule, asked)]
    if others:
        yield ("",)
        yield ("not asked:",)
        for rule in others:
            yield (f"   {rule.name}{_line(rule)}: {policy.why_not(rule, request)}",)


def _line_number(rule: Rule) -> int | None:
    return rule.position.line if rule.position else None


def _line(rule: Rule) -> str:
    return f" (line {rule.position.line})" if rule.position else ""


def _pair(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    if not colon or not name.strip():
        raise click.UsageError(f"{header!r} is no header; write -H 'Name: value'")
    return name.strip(), value.strip()
