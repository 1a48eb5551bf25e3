"""The kill switch and the database: the names of the rules, and the audit.

Neither is needed. The kill switch is for emergencies, so a database that does not answer is
reported, and not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from limen.cli import draw, fleet, place, source
from limen.errors import InvalidInput, LimenError
from limen.rules.stores.records import MAX_SUBJECT, valid_comment
from limen.rules.sync import Switch
from limen.rules.sync.switch import find_wrong_name

if TYPE_CHECKING:
    from limen.server.settings import Settings

_PATIENCE_S = 2.0


def check(names: Sequence[str], comment: str, settings: Settings) -> None:
    """Raise `InvalidInput` for a name that no rule has, or a comment that cannot be kept.

    Names that cannot be verified pass, with a line on stderr.
    """
    valid_comment(comment)
    wrong = find_wrong_name(names, _known_names(settings) if names else ())
    if wrong is not None:
        raise InvalidInput(wrong[1])


def record(switch: Switch, comment: str, settings: Settings) -> None:
    """Write the audit row; print a line on stderr if that fails."""
    subject, at = str(switch)[:MAX_SUBJECT], datetime.fromtimestamp(switch.at, UTC)
    try:
        place.use(
            settings.database.reveal(),
            lambda store: store.record("kill-switch", subject, switch.by, comment, at=at),
            _PATIENCE_S,
        )
    except (LimenError, ImportError) as error:
        draw.complain(f"limen: this is not in the audit: {error}")


def _known_names(settings: Settings) -> list[str] | None:
    """Return the names of the rules in force; None if they cannot be found out.

    They are those of the source of the rules; if it does not answer, those that the processes
    share by way of the store.
    """
    where, store = settings.rules_place.reveal(), settings.shared_store
    try:
        if place.is_file(where):
            return [rule.name for rule in source.read(where).rules.rules]
        active = place.use(where, lambda books: books.active(), _PATIENCE_S)
        return _names(active.document) if active is not None else []
    except (LimenError, ImportError) as error:
        reason = error
    if store is not None and not place.is_file(where):
        try:
            return _names(fleet.shared_document(store, settings.namespace))
        except LimenError:
            pass
    draw.complain(f"limen: the names of the rules were not verified: {reason}")
    return None


def _names(document: object) -> list[str]:
    rules = document.get("rules", []) if isinstance(document, dict) else []
    return [str(rule.get("name")) for rule in rules if isinstance(rule, dict)]
