"""The store that `limen doctor` examines, from its options and the settings of `limen serve`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

import typer

from limen.cli import serving
from limen.errors import InvalidInput, did_you_mean, shown

if TYPE_CHECKING:
    from limen.doctor import Role


def chosen(
    context: typer.Context, url: str | None, role: str | None, namespace: str | None
) -> tuple[str, str, Role] | None:
    """Return URL, namespace and role; None without a URL, if no settings name a shared store.

    A program does not read limen.toml, so the settings are for the role of the service alone, and
    for a command without a URL.
    """
    from limen.doctor.rights import Role

    roles = get_args(Role)
    if role is not None and role not in roles:
        hint = did_you_mean(role, roles)
        raise InvalidInput(f"--for takes {' or '.join(roles)}, got {shown(role)}{hint}")
    if url is not None and role != "service":
        return url, "limen" if namespace is None else namespace, "library"
    try:
        settings = serving.settings_of(context)
    except ImportError:
        if role is not None:
            raise
        return None  # without the packages of the service, there are no settings of one
    url = url or settings.shared_store
    if url is None:
        return None
    return url, settings.namespace, cast("Role", role or "service")
