"""A storage for the library `limits`: its strategies decide on limen's algorithms.

Importing this module makes the addresses known to `limits`, and so to Flask-Limiter and slowapi:

```python
import limen.adapters.limits  # noqa: F401

Limiter(key_func, storage_uri="limen+redis://localhost:6379")  # of Flask-Limiter, or of slowapi
storage_from_string("limen+memory://")  # of limits
storage_from_string("async+limen+redis://localhost:6379")  # of limits, for limits.aio
```

What stands behind `limen+` is an address of limen: `memory://`, `redis://`, `rediss://`,
`unix://`, `redis+cluster://`, `redis+sentinel://`, and the same with `valkey`. Options are given
behind `?`, or as `storage_options`; see `Settings`.

What is the same as with the storages of `limits`, and what is not:

- `fixed-window` runs on `fixed_window`, begun by the first hit. A refused hit is charged nothing,
  where `limits` counts it.
- `moving-window` runs on `packed_window`: never more than the limit in any window, across all
  processes, by the clock of the store. At most 1,000,000 hits.
- `sliding-window-counter` runs on `sliding_counter`, and what is left of the previous window is
  rounded down as `limits` documents it, to a thousandth of a hit. `test` says what `hit` would.
- A hit that costs nothing always passes; one that costs less is an error.
- When the store does not answer, there is a decision all the same, unless `on_error` is `raise`.
- A shared store is not searched for keys: `reset` is for `limen+memory://`. `clear` works on all.
"""

from limen.adapters.missing import missing

try:
    import limits as _limits  # noqa: F401  # only to say what is missing
except ImportError as _error:
    raise missing("limits", _error) from None

from limen.adapters.limits.settings import Settings, StorageConfigurationError
from limen.adapters.limits.storage import AsyncLimenStorage, LimenStorage

__all__ = ["AsyncLimenStorage", "LimenStorage", "Settings", "StorageConfigurationError"]
