"""Settings of a project as people have them. `LIMEN` comes from the environment, as JSON."""

from __future__ import annotations

import json
import os
from typing import Any

from limen.adapters.django import RateLimit

SECRET_KEY = "for tests alone"
DEBUG = False
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.adapters.django.project.urls"
USE_TZ = True
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("de", "Deutsch")]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "limen.adapters.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "limen.adapters.django.RateLimitMiddleware",
    "django.middleware.common.CommonMiddleware",
]
TEMPLATES: list[dict[str, Any]] = []
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
AUTHENTICATION_BACKENDS = ["tests.adapters.django.project.whom.ByNumber"]
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["tests.adapters.django.project.whom.ByToken"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"]},
}

LIMEN: dict[str, Any] = {
    "SCOPES": {"uploads": "2/day", "burst": "3/day"},
    **json.loads(os.environ.get("LIMEN_IN_TESTS", "{}")),
}
if LIMEN.pop("EVERYWHERE", False):
    # Where it holds, so that most views have only their own limits.
    LIMEN["LIMITS"] = [
        RateLimit(
            "4/day",
            "1000/week",
            exempt_when=lambda request: not request.path.startswith("/everywhere/"),
        )
    ]
if os.environ.get("WITHOUT_MIDDLEWARE"):
    MIDDLEWARE.remove("limen.adapters.django.RateLimitMiddleware")
if os.environ.get("SYNC_NEIGHBOUR"):
    MIDDLEWARE.append("tests.adapters.django.project.whom.only_sync")
