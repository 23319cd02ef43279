"""`INSTALLED_APPS = [..., "diana.django"]`: then `manage.py check` reports errors in the rules and in the other settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

from diana.core.errors import ConfigError
from diana.core.policy import Policy
from diana.django.middleware import SETTINGS, imported_setting, rules_setting, setting
from diana.rules import is_url
from diana.rules.loading import load_rules
from diana.web.identity_callbacks import Finders

MIDDLEWARE = "diana.django.RateLimitMiddleware"
FUNCTIONS = ("ACCOUNT", "DEVICE", "TIER", "DENIED")


def check_rules(app_configs: Any, **_: Any) -> list[CheckMessage]:  # noqa: ARG001
    """Every mistake of the rules file, each with its place; settings that name what is not there."""
    if MIDDLEWARE not in settings.MIDDLEWARE or setting("ENABLED") is False:
        return []
    return [*_errors_of_rules(), *_errors_of_functions()]


def _errors_of_rules() -> list[CheckMessage]:
    rules = rules_setting()
    if isinstance(rules, str) and is_url(rules):
        return []
    try:
        policy = rules if isinstance(rules, Policy) else load_rules(rules)
    except ConfigError as error:
        hint = "DIANA_RULES is a mapping"
        if not isinstance(rules, Mapping):
            hint = f"DIANA_RULES is {str(rules)!r}"
        return [Error(str(error), hint=hint, obj="diana", id="diana.E001")]
    return _errors_of_identity(policy)


def _errors_of_identity(policy: Policy) -> list[CheckMessage]:
    """What the rules leave to code, and no setting names a function for."""
    functions = [setting(name) and _any_function for name in ("ACCOUNT", "DEVICE", "TIER")]
    try:
        Finders(*functions).require(SETTINGS, policy)
    except ConfigError as error:
        return [Error(str(error), obj="diana", id="diana.E003")]
    return []


def _any_function(_: Any) -> None:
    """Stands for one that a setting names."""


def _errors_of_functions() -> list[CheckMessage]:
    try:
        found = {name: imported_setting(name) for name in FUNCTIONS}
        Finders(found["ACCOUNT"], found["DEVICE"], found["TIER"])
    except (ImportError, ConfigError) as error:
        return [Error(str(error), obj="diana", id="diana.E002")]
    return []


class DianaConfig(AppConfig):  # type: ignore[misc]  # Django comes without types
    name = "diana.django"
    label = "diana"
    verbose_name = "Diana"

    def ready(self) -> None:
        register(check_rules)
