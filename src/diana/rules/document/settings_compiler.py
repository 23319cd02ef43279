"""The settings of a rules file, as values: what is not written has its default."""

from __future__ import annotations

from typing import Any

from diana.core.client_address import Proxies
from diana.core.policy import ResponseSettings, Settings
from diana.core.rule import Body
from diana.core.settings import LeaseTerms
from diana.rules.document.filter_and_shed_fields import compiled_filters
from diana.rules.document.readers import ErrorCollector, Field
from diana.rules.document.settings_fields import RulesFile


def compiled_settings(file: RulesFile, mistakes: ErrorCollector) -> Settings:
    def value(name: str, default: Any) -> Any:
        field = file.settings.get(name)
        return default if field is None else field.value

    identity: dict[str, Field] = value("identity", {})
    networks = identity.get("trusted_proxies")
    response: dict[str, Field] = value("response", {})
    answer = ResponseSettings(
        status=response["status"].value if "status" in response else 503,
        headers=tuple(response["headers"].value)
        if "headers" in response
        else ResponseSettings().headers,
        body=response["body"].value if "body" in response else Body(),
    )
    proxies = Proxies(networks.value if networks else ())
    return Settings(
        store=value("store", None),
        local_store=value("local_store", "memory://"),
        store_budget_us=value("store_budget", None),
        require_store=value("require_store", False),
        namespace=value("namespace", "diana"),
        nodes=value("nodes", None),
        weight=value("weight", None),
        lease=_lease_terms(value("lease", {})),
        rules_from=value("rules_from", None),
        proxies=proxies,
        identity={name: _as_written(field.value) for name, field in identity.items()},
        missing=value("missing", "ip"),
        mounts=tuple(value("mounts", ())),
        answer=answer,
        filters=compiled_filters(value("filters", []), proxies, mistakes),
    )


def _lease_terms(written: dict[str, Field]) -> LeaseTerms:
    terms = LeaseTerms()
    return LeaseTerms(
        written["start"].value if "start" in written else terms.start_percent,
        written["ttl"].value if "ttl" in written else terms.ttl_us,
    )


def _as_written(value: Any) -> Any:
    return list(map(str, value)) if isinstance(value, list | tuple) else value
