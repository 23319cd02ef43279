"""`INSTALLED_APPS = [..., "diana.django"]`: then `manage.py check` reads the rules too."""

from django.apps import AppConfig
from django.core.checks import register

from diana.middleware.django_check import check_rules


class DianaConfig(AppConfig):  # type: ignore[misc]  # Django comes without types
    name = "diana.django"
    label = "diana"
    verbose_name = "Diana"

    def ready(self) -> None:
        register(check_rules)
