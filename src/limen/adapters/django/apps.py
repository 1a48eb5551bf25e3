"""The application, for `INSTALLED_APPS`: it brings the system checks along, and nothing else."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks

from limen.adapters.django.checks import check_setting, check_store, check_views


class LimenConfig(AppConfig):
    """limen, as an application of Django's. It has no models."""

    name = "limen.adapters.django"
    label = "limen"

    def ready(self) -> None:
        """Let `manage.py check` look at the setting."""
        checks.register(check_setting)
        checks.register(check_views, checks.Tags.urls)
        checks.register(check_store, deploy=True)
