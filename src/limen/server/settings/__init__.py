"""The settings of `limen serve`, from a TOML file, the environment and flags.

From the weakest source: defaults, a file, the environment, flags. Everything is validated before
anything starts, and all errors are reported at once. Opens no store, no database and no socket.
"""

from limen.server.settings.fields import FIELDS
from limen.server.settings.loading import load, load_valid, read
from limen.server.settings.model import Settings
from limen.server.settings.text import as_data, as_toml, example

__all__ = ["FIELDS", "Settings", "as_data", "as_toml", "example", "load", "load_valid", "read"]
