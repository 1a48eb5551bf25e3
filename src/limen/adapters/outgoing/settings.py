"""What a transport is made with, validated; and what functions of the user's own may answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from limen._internal.functions import is_async, name_of
from limen.errors import ConfigurationError, InvalidInput, shown
from limen.limiter.plan import Limits
from limen.model import Limit, valid_cost

_YEAR_S = 366 * 86_400


class Settings(Struct, frozen=True):
    """What a transport was made with. Raises `ConfigurationError` for what makes no sense."""

    limits: tuple[Limit | str, ...]
    """What may be sent. Nothing here: only the servers are listened to."""
    key: Any
    """`"host"`, or a function of the request."""
    cost: Any
    """A number, or a function of the request."""
    exempt_when: Any
    """None, or a function of the request."""
    wait: float | None
    """For how many seconds a request may wait; 0 is never, None without end."""
    learn: bool
    """Whether servers are listened to."""
    max_pause: float
    """The longest pause, in seconds, that a server can ask for."""

    def __post_init__(self) -> None:
        if self.limits:
            Limits().checks(self.limits, "any", 1)
        if self.key != "host" and not callable(self.key):
            # Not the value itself: it may be the key of an API.
            raise ConfigurationError(
                "key must be 'host', or a function of the request that returns text, "
                f"got {'other text' if isinstance(self.key, str) else type(self.key).__name__}"
            )
        if not callable(self.cost):
            valid_cost(self.cost)
        if self.exempt_when is not None and not callable(self.exempt_when):
            raise ConfigurationError(
                f"exempt_when must be a function of the request, got {shown(self.exempt_when)}"
            )
        if self.wait is not None and (
            self.wait is True or not isinstance(self.wait, int | float) or not self.wait >= 0
        ):
            raise ConfigurationError(
                f"wait must be seconds from 0, or None to wait without end, got {shown(self.wait)}"
            )
        if not isinstance(self.learn, bool):
            raise ConfigurationError(f"learn must be True or False, got {shown(self.learn)}")
        if (
            isinstance(self.max_pause, bool)
            or not isinstance(self.max_pause, int | float)
            or not 0 < self.max_pause <= _YEAR_S
        ):
            raise ConfigurationError(
                f"max_pause must be seconds above 0, a year at most, got {shown(self.max_pause)}"
            )

    @property
    def waits(self) -> bool:
        """Whether a request may wait at all."""
        return self.wait is None or self.wait > 0

    def refuse_async(self) -> None:
        """Raise `ConfigurationError` if a function is async, for a transport of threads."""
        for function in (self.key, self.cost, self.exempt_when):
            if is_async(function):
                raise ConfigurationError(
                    f"{name_of(function)} is async, and a transport of threads cannot await it; "
                    "use a function that is not, or AsyncRateLimitTransport"
                )

    def key_from(self, answer: object) -> str:
        """Return what a key function answered, or raise an error that names it."""
        if isinstance(answer, str) and answer:
            return answer
        # Not the answer itself: it may be a secret.
        got = "None" if answer is None else "empty text" if answer == "" else type(answer).__name__
        raise ConfigurationError(
            f"the key function {name_of(self.key)} returned {got}, and not text; to leave a "
            "request uncounted use exempt_when"
        )

    def cost_from(self, answer: object) -> int:
        """Return what a cost function answered, or raise an error that names it."""
        try:
            return valid_cost(answer)
        except InvalidInput as error:
            raise ConfigurationError(
                f"the cost function {name_of(self.cost)} is wrong: {error}"
            ) from None


def origin(request: Any) -> str:
    """Return whom a request goes to: `https://api.example.com`, with a port that is not usual."""
    return f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"


def failed(name: str, function: Callable[..., object], error: Exception) -> ConfigurationError:
    """Return what to raise when a function of the user's own raises.

    Without what that error says, which may be a secret; it is there as the cause.
    """
    return ConfigurationError(
        f"the function {name_of(function)}, given as {name}=, raised {type(error).__name__}"
    )
