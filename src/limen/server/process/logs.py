"""How a service writes its log: one line for each event, as text or as JSON, to stderr.

The rest of limen logs by Python's own `logging` and knows nothing of this. Whatever is written goes
through `masked`, so that an address in an error of somebody else shows no password either.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from limen.masking import masked
from limen.server.settings.model import LogSettings

_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class TextLines(logging.Formatter):
    """Lines for people: `2026-11-15 17:45:43Z warning: the store did not answer`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one event as a line; a traceback, if there is one, below it."""
        at = datetime.fromtimestamp(record.created, UTC)
        # On one line, whoever wrote it: a name with a line break must not look like another event.
        said = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        line = f"{at:%Y-%m-%d %H:%M:%S}Z {record.levelname.lower()}: {said}"
        more = " ".join(f"{name}={value}" for name, value in _extras(record).items())
        if more:
            line = f"{line} {more}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return masked(line)


class JsonLines(logging.Formatter):
    """Lines for machines: an object with `at`, `level`, `logger`, `message`, and what is known."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one event as an object on one line."""
        event: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": masked(record.getMessage()),
            "pid": record.process,
            **{name: masked(str(value)) for name, value in _extras(record).items()},
        }
        if record.exc_info:
            event["traceback"] = masked(self.formatException(record.exc_info))
        return json.dumps(event, ensure_ascii=False)


def set_up(settings: LogSettings) -> None:
    """Let everything that this process logs go to stderr, as the settings say."""
    handler = logging.StreamHandler(sys.stderr)
    is_text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextLines() if is_text else JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # Others only complain; of limen itself, as much as is asked for.
    logging.getLogger("limen").setLevel(settings.level.upper())


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
