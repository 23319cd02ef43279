"""`diana peek`, `reset` and `unblock`: one client's counter, for the support desk."""

from __future__ import annotations

import click

from diana.cli.key_status import (
    Standing,
    Standings,
    assumptions,
    json_of_standing,
    seconds,
    standings,
    words_of_look,
)
from diana.cli.output import echo_json, format_option, say
from diana.cli.store_admin import Asked, Counter, counter_arguments, opened_counter
from diana.core.decision import UNKNOWN


@click.command()
@counter_arguments
@format_option
def peek(asked: Asked, form: str) -> None:
    """Show where a client stands under a rule; nothing is charged.

    URL is the store's, such as redis://localhost:6379 or shared://NAME; without it, DIANA_STORE or the rules file says. RULE is the rule's
    name, VALUE what it counts by: an account, an address.
    """
    with opened_counter(asked) as counter:
        found = standings(counter)
        if form == "json":
            echo_json(_json(counter, found))
        else:
            _show(counter, found)


def _show(counter: Counter, found: Standings) -> None:
    rule = counter.rule
    fields = rule.fields
    where = f", for {fields['url']}" if fields["url"] else ""
    methods = f" ({fields['methods']})" if fields["methods"] else ""
    say(f"store   {counter.store.where}")
    say(f"rule    {rule.distinct_name}, by {rule.actor}{where}{methods}")
    say(f"key     {counter.key!r}")
    if rule.cost != 1:
        say(f"cost    {rule.cost}")
    standing = found.agreed
    if standing is None:
        say("tiers   the client's tier is not known here; --tier NAME chooses one")
        names = max(len(one.tier or "") for one in found.each)
        limits = max(len(one.terms.limit) for one in found.each)
        for one in found.each:
            say(f"  {one.tier:<{names}}  {one.terms.limit:<{limits}}  ", *words_of_look(one))
    else:
        why = f", {standing.why}" if standing.why else ""
        say(f"limit   {standing.terms.limit}{why}")
        say("says    ", *words_of_look(standing))
        say(f"new in  {seconds(standing.reset_us)}")
    for line in assumptions(counter):
        say(f"note    {line}")


def _json(counter: Counter, found: Standings) -> dict[str, object]:
    rule, standing = counter.rule, found.agreed
    return {
        "store": counter.store.where,
        "rule": rule.distinct_name,
        "url": rule.fields["url"] or None,
        "actor": rule.actor,
        "key": counter.key,
        "cost": rule.cost,
        "tier": None if standing is None else standing.tier,
        **json_of_standing(standing),
        "tiers": [
            {"tier": one.tier, **json_of_standing(one)}
            for one in found.each
            if one.tier is not None
        ],
        "override": None if found.override is None else found.override._asdict(),
        "notes": list(assumptions(counter)),
    }


@click.command()
@counter_arguments
def reset(asked: Asked) -> None:
    """Forget what was counted of a client under a rule.

    Arguments as for `diana peek`. All nodes follow within two seconds.
    """
    with opened_counter(asked) as counter:
        was_there = counter.store.reset(counter.rule, counter.key)
        said = "forgotten" if was_there else f"nothing was counted in {counter.store.where}"
        say(f"{counter.rule.distinct_name}: {said}")


@click.command()
@counter_arguments
def unblock(asked: Asked) -> None:
    """Let a client pass again that a rule denies now.

    Arguments as for `diana peek`. It resets the counter if the client is denied, and changes nothing if not. All nodes follow within
    two seconds.
    """
    with opened_counter(asked) as counter:
        _unblock(counter, standings(counter))


def _unblock(counter: Counter, found: Standings) -> None:
    rule = counter.rule
    denied = [one for one in found.each if not one.look.allowed]
    if denied and (rule.unlisted or len(denied) < len(found.each)):
        raise click.UsageError(_cannot_tell(counter, found))
    for line in assumptions(counter):
        say(f"note: {line}", err=True)
    if not denied:
        one = found.each[0]
        if found.agreed is None:
            said = "not denied under any tier"
        else:
            said = f"not denied under {_named(one)}, {one.left} left"
        say(f"{rule.distinct_name}: {said}; nothing was changed")
        return
    if all(one.terms.most == 0 for one in denied):
        raise click.ClickException(
            f"{rule.name}: its limit for this client is 0, so every request is denied; nothing was changed: change the rules file, "
            "or run diana override"
        )
    counter.store.reset(rule, counter.key)
    longest = max(denied, key=_wait_us)
    under = _named(longest) if found.agreed is not None else "every tier"
    say(
        f"{rule.distinct_name}: unblocked; under {under} it was denied for another {seconds(_wait_us(longest))}"
    )


def _cannot_tell(counter: Counter, found: Standings) -> str:
    name = counter.rule.distinct_name
    if counter.rule.unlisted:
        said = next(assumptions(counter))
        return f"{name}: it is not known whether this client is denied; nothing was changed: {said}"
    denied = ", ".join(str(one.tier) for one in found.each if not one.look.allowed)
    allowed = ", ".join(str(one.tier) for one in found.each if one.look.allowed)
    return (
        f"{name}: denied under {denied}, not denied under {allowed}; nothing was changed; "
        "write the client's tier: --tier NAME"
    )


def _named(standing: Standing) -> str:
    """`3/minute (tier free)`."""
    return standing.terms.limit + (f" ({standing.why})" if standing.why else "")


def _wait_us(standing: Standing) -> int:
    look = standing.look
    return look.reset_us if look.retry_us == UNKNOWN else look.retry_us
