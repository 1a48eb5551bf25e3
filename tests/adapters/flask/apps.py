"""Small Flask applications, and where they are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from flask import Flask

from limen import Limiter
from limen.adapters.flask import RateLimits
from tests.adapters.wsgi.serving import under_werkzeug


@contextmanager
def serving(app: Flask) -> Iterator[httpx2.Client]:
    """Serve an application as `flask run` does."""
    with under_werkzeug(app) as client:
        yield client


def limited(*limits: Any, source: Any = None, **more: Any) -> tuple[Flask, RateLimits]:
    """Return an application with one view, and what limits it."""
    app = Flask(__name__)
    app.add_url_rule("/", "home", lambda: "hello", methods=["GET", "POST"])
    return app, RateLimits(source or Limiter(), *limits, app=app, **more)
