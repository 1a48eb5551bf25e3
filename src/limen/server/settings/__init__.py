"""The settings of `limen serve`: what there is, where it may be said, and what was said.

From the weakest: defaults, a TOML file, the environment, flags. Everything is validated before
anything starts, and all that is wrong is told at once. Opens no store, no database and no socket.
"""

from limen.server.settings.bind import Bind
from limen.server.settings.fields import FIELDS, Field
from limen.server.settings.forwarded import Forwarded
from limen.server.settings.loading import Loaded, load, load_valid, read
from limen.server.settings.model import (
    AuthSettings,
    GatewaySettings,
    GrpcSettings,
    HttpSettings,
    LogSettings,
    Settings,
    StoreSettings,
    TlsSettings,
)
from limen.server.settings.secret import Secret, SecretAddress
from limen.server.settings.text import as_data, as_toml, example

__all__ = [
    "FIELDS",
    "AuthSettings",
    "Bind",
    "Field",
    "Forwarded",
    "GatewaySettings",
    "GrpcSettings",
    "HttpSettings",
    "Loaded",
    "LogSettings",
    "Secret",
    "SecretAddress",
    "Settings",
    "StoreSettings",
    "TlsSettings",
    "as_data",
    "as_toml",
    "example",
    "load",
    "load_valid",
    "read",
]
