"""Django: a middleware, a decorator, and one setting. Throttles for REST framework are in `rest`.

```python
INSTALLED_APPS = [..., "limen.adapters.django"]             # for the system checks
MIDDLEWARE = [..., "limen.adapters.django.RateLimitMiddleware"]
LIMEN = {"STORE": "redis://localhost:6379", "LIMITS": ["100/minute"]}
```

By WSGI and by ASGI; neither of them waits for the other.
"""

from limen.adapters.missing import missing

try:
    import django as _django  # noqa: F401  # only to say what is missing
except ImportError as _error:
    raise missing("django", _error) from None

from limen.adapters.django.decorator import RateLimit, exempt, ratelimit
from limen.adapters.django.entry import Refused, visit_of
from limen.adapters.django.middleware import RateLimitMiddleware

__all__ = ["RateLimit", "RateLimitMiddleware", "Refused", "exempt", "ratelimit", "visit_of"]
