"""Rules: the language, how they are matched, and where they are kept. Knows no limiter."""

try:
    import pydantic as _pydantic  # noqa: F401  # only to say what is missing
    import yaml as _yaml  # noqa: F401
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "rules need pydantic and PyYAML: pip install 'limen[rules]'", name=_error.name
    ) from None

from limen.rules.document import check, load, parse, parse_text
from limen.rules.ruleset import RuleSet

__all__ = ["RuleSet", "check", "load", "parse", "parse_text"]
