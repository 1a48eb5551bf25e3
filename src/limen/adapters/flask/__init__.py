"""Flask: limits for an application, its blueprints and its views.

```python
limits = RateLimits(Limiter("redis://localhost:6379"), "1000/hour")
limits.init_app(app)

@app.get("/search")
@limits.limit("10/minute", key="user")
def search(): ...
```

All limits of a request are asked about before its view is called, in one call. Who is refused is
stopped by an exception, so that `@app.errorhandler(429)` works as for any other.
"""

from limen.adapters.missing import missing

try:
    import flask as _flask  # noqa: F401  # here, so that one place says what is missing
except ImportError as _error:
    raise missing("flask", _error) from None

from limen.adapters.flask.extension import RateLimits, Terms
from limen.adapters.flask.installed import FlaskRequest, Installed, Refused
from limen.adapters.limit import RateLimit

__all__ = ["FlaskRequest", "Installed", "RateLimit", "RateLimits", "Refused", "Terms"]
