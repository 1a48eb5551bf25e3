"""Tells people of alerts: in the log at once, and by a webhook in as few messages as will do.

Owns what waits, how often a message may go, and what it says. Does not know how a message travels.
No key is logged. What stands in `top` goes into messages as it was given.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, json

from limen import Limiter
from limen.clock import Clock
from limen.observe.alerts import Alert
from limen.server.insight.webhook import Webhook

LIMITS = ("1/10s", "30/hour")
"""How often a message may go. What may not yet, waits, and goes with others."""
MAX_WAITING = 200
MAX_RETRIES = 3
MAX_LINES = 20
"""How many sentences stand in the text that a chat shows."""

_logger = logging.getLogger("limen.alerts")


class _Message(Struct):
    """What goes at once, and how often it has failed."""

    began: list[Alert]
    ended: list[Alert]
    more: int
    failures: int = 0


class Delivery:
    """Tells of what began and what ended.

    `deliver` only logs and remembers, and may be called anywhere. `send_due` blocks: it is for a
    thread, about once a second while something waits. Neither raises.
    """

    def __init__(
        self, namespace: str, webhook: Webhook | None = None, *, clock: Clock | None = None
    ) -> None:
        """Use the namespace of the service in its store to say which service it is."""
        self._namespace = namespace
        self._webhook = webhook
        self._limiter = Limiter(clock=clock)
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: dict[str, Alert] = {}
        self._left_out = 0
        self._unlisted = 0
        self._message: _Message | None = None
        self.sent: int = 0
        """Messages that were taken."""
        self.failed: int = 0
        """Attempts that failed."""
        self.dropped: int = 0
        """Messages that were given up."""

    @property
    def is_waiting(self) -> bool:
        """Whether something waits to be sent, now or later."""
        return bool(self._message or self._waiting or self._left_out)

    def deliver(self, changed: Sequence[Alert], more: int = 0) -> None:
        """Log what began or ended, and let it wait for the next message.

        `more` is how many are above a threshold now beyond those that are told one by one.
        """
        for alert in changed:
            if alert.ended is None:
                _logger.warning("alert began: %s", alert.text, extra={"alert": alert.id})
            else:
                _logger.info("alert ended: %s", alert.text, extra={"alert": alert.id})
        if more and not self._unlisted:
            _logger.warning("%d more alerts are not told one by one", more)
        with self._lock:
            self._unlisted = more
            if self._webhook is not None:
                self._keep(changed)

    def _keep(self, changed: Iterable[Alert]) -> None:
        for alert in changed:
            # By its id, so that what began and ended meanwhile is told once, as ended.
            if alert.id in self._waiting or len(self._waiting) < MAX_WAITING:
                self._waiting[alert.id] = alert
            else:
                self._left_out += 1

    def send_due(self, now: float) -> None:
        """Send what waits in one message, if one may go now. `now` is in unix seconds.

        Whoever comes while another sends goes away again at once.
        """
        if self._webhook is None or not self.is_waiting:
            return
        if not self._sending.acquire(blocking=False):
            return
        try:
            # A message that failed asks again, so that what is broken is not called more often.
            if self._limiter.check("webhook", *LIMITS).allowed:
                self._send(self._webhook, now)
        finally:
            self._sending.release()

    def close(self) -> None:
        """Let go of the limiter. What still waits is not sent."""
        self._limiter.close()

    def _send(self, webhook: Webhook, now: float) -> None:
        message = self._message = self._message or self._next()
        try:
            failure = webhook.send(_body(self._namespace, message, now), now)
        except Exception as error:  # whatever it is, the next alert must still be told
            failure = f"webhook: {type(error).__name__}"
        if failure is None:
            self.sent += 1
            self._message = None
            return
        self.failed += 1
        message.failures += 1
        if message.failures <= MAX_RETRIES:
            _logger.info("%s; it is tried again", failure)
            return
        self.dropped += 1
        self._message = None
        told = len(message.began) + len(message.ended) + message.more
        _logger.warning(
            "%s; given up after %d times, with %d in it", failure, message.failures, told
        )

    def _next(self) -> _Message:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            more, self._left_out = self._left_out + self._unlisted, 0
        began = [alert for alert in waiting.values() if alert.ended is None]
        ended = [alert for alert in waiting.values() if alert.ended is not None]
        return _Message(began, ended, more)


def _body(namespace: str, message: _Message, now: float) -> bytes:
    host = socket.gethostname()
    at = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    document: dict[str, Any] = {
        "service": "limen",
        "host": host,
        "namespace": namespace,
        "sent_at": at,
        "text": _text(f"limen ({namespace}) on {host}", message),
        "began": message.began,
        "ended": message.ended,
        "more": message.more,
    }
    return json.encode(document)


def _text(where: str, message: _Message) -> str:
    """Return what a chat shows: a line for each alert, the first ones of many."""
    told = [
        *(f"began: {alert.text}" for alert in message.began),
        *(f"ended: {alert.text}" for alert in message.ended),
    ]
    lines = [where, *told[:MAX_LINES]]
    rest = len(told[MAX_LINES:]) + message.more
    if rest:
        lines.append(f"and {rest:,} more")
    return "\n".join(lines)
