"""The responses of the administration, except those about decisions.

Only `NewToken` has a secret. Messages of other packages, such as `Change`, are used as they are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from limen.backends import ShardState
from limen.rules.diff import Change
from limen.rules.explain import Tested
from limen.rules.stores.records import AuditEntry, Time, Version
from limen.rules.stores.tokens import TokenInfo, TokenState
from limen.rules.sync import Switch
from limen.rules.sync.cache import Instance
from limen.server.admin.edits import State
from limen.server.admin.openapi import REFERENCE
from limen.server.worker.container import Health
from limen.wire import Verdict

Mode = Literal["enforce", "shadow", "off", "block"]
Reached = Literal["reached", "not reached", "none"]
Document = Annotated[dict[str, Any], Meta(extra_json_schema={REFERENCE: "RuleSet"})]


class ProblemAt(Struct, frozen=True):
    """A problem of a rule set, and its place."""

    path: str
    """The place in the document: `rules[2].limits`; empty for the whole document."""
    message: str
    line: int | None
    """The line in the text, from 1; null when there is no text."""


class RuleSummary(Struct, frozen=True, kw_only=True):
    """A summary of a rule."""

    name: str
    description: str
    mode: Mode
    enforce_percent: float
    match: dict[str, Any]
    key: list[str]
    limits: list[str]
    """All limits: `["100/minute", "pro: 600/minute", "3 at once, lease 60s"]`."""
    overrides: int
    """The number of overrides."""
    state: State
    """Whether the rule is active now, by `starts` and `ends`."""


class RuleDetails(RuleSummary, frozen=True, kw_only=True):
    """A rule, and its definition."""

    version: int | None
    """The version of the rules; null for a file."""
    document: dict[str, Any]
    """The rule as it is in the rule set."""


class VersionSummary(Version, frozen=True, kw_only=True):
    """A version of the rules, without the rules."""

    summary: str
    """The number of additions, changes and removals: `+1 ~2 -0`."""


class SavedVersion(VersionSummary, frozen=True, kw_only=True):
    """A version, and its differences from its parent."""

    changes: list[Change]


class VersionDetails(SavedVersion, frozen=True, kw_only=True):
    """A version with its rules."""

    document: Document


class Versions(Struct, frozen=True):
    """Versions of the rules, the newest first."""

    versions: list[VersionSummary]


class ActiveRules(Struct, frozen=True, kw_only=True):
    """The active rules."""

    source: Literal["database", "file"]
    """The place of the rules. Rules in a file cannot be changed here."""
    version: int | None
    """The active version; 0 when there is none yet; null for a file."""
    latest: int | None
    """The newest version, active or not: the `base` of the next edit. Null for a file."""
    in_force: str
    """The rules that this process runs: the version, or the digest of the file."""
    author: str | None
    comment: str | None
    created_at: Time | None
    document: Document
    rules: list[RuleSummary]


class ValidationResult(Struct, frozen=True, kw_only=True):
    """The problems of a rule set. Nothing was saved."""

    valid: bool
    problems: list[ProblemAt]
    advice: list[ProblemAt]
    """Valid rules that are probably a mistake."""
    document: Any
    """The rules as data, if that was requested and they can be parsed."""
    text: str | None
    """The rules as YAML, if that was requested and they are valid."""


class Diff(Struct, frozen=True, kw_only=True):
    """The differences between two versions."""

    before: int
    """0 is no rules at all."""
    after: int
    summary: str
    lines: list[str]
    """A line for each change: `~ rules.api.limits: 100/minute -> 200/minute`."""
    changes: list[Change]


class Timed(Struct, frozen=True, kw_only=True):
    """A part of the rules that can begin and end at a time."""

    description: str
    starts: str | None
    ends: str | None
    state: State


class OverrideView(Timed, frozen=True, kw_only=True):
    """An override."""

    rule: str
    key: dict[str, Any]
    limits: str | list[str]


class OverrideSaved(Struct, frozen=True):
    """An override that was saved, and its version of the rules."""

    override: OverrideView
    version: SavedVersion


class Overrides(Struct, frozen=True):
    """All overrides of all rules."""

    version: int | None
    overrides: list[OverrideView]


class ExemptionView(Timed, frozen=True, kw_only=True):
    """An exemption."""

    name: str
    match: dict[str, Any]
    rules: list[str] | None
    """Null for all rules."""


class ExemptionSaved(Struct, frozen=True):
    """An exemption that was saved, and its version of the rules."""

    exemption: ExemptionView
    version: SavedVersion


class Exemptions(Struct, frozen=True):
    """All exemptions."""

    version: int | None
    exemptions: list[ExemptionView]


class BlockView(Timed, frozen=True, kw_only=True):
    """A rule that refuses all requests that match."""

    name: str
    match: dict[str, Any]


class BlockSaved(Struct, frozen=True):
    """A block that was saved, and its version of the rules."""

    block: BlockView
    version: SavedVersion


class Blocks(Struct, frozen=True):
    """All rules that block."""

    version: int | None
    blocks: list[BlockView]


class RuleExplanation(Struct, frozen=True, kw_only=True):
    """The reasons for which a rule applies to a request, or does not apply."""

    rule: str
    mode: Mode
    applies: bool
    because: str | None
    """The reason against the rule; null when it applies."""
    conditions: list[Tested]
    """Texts have at most 200 characters. If some conditions are left out, those that do not hold
    come first."""
    conditions_left_out: int
    """The number that is not in `conditions`: all rules together have at most 2,000 there."""


class ExplainResult(Struct, frozen=True, kw_only=True):
    """The reasons for which each rule applies to a request, or does not apply; and the verdict."""

    version: str
    """The version of these rules: those that this process runs."""
    exempt: list[str]
    """The exemptions that match the request, at most 1,000."""
    exempt_left_out: int
    """The number that is not in `exempt`."""
    unused: list[str]
    """Attributes that no rule uses."""
    rules: list[RuleExplanation]
    """At most 1,000: the requested one, those that apply, and then others."""
    rules_left_out: int
    """The number that is not in `rules`."""
    verdict: Verdict
    """The verdict of `/v1/check`, with nothing charged. A key has at most 200 characters here, and
    a list at most 1,000 members."""


class ResetResult(Struct, frozen=True):
    """The counters that were reset."""

    rules: list[str]
    """The rules of the counters; empty when no rule counts such a request."""


class TokenView(TokenInfo, frozen=True, kw_only=True):
    """A token without its secret."""

    state: TokenState


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was created by this request."""

    secret: str
    """The token to send. It is not stored, and never shown again."""


class Tokens(Struct, frozen=True):
    """All tokens, the newest first."""

    tokens: list[TokenView]


class Audit(Struct, frozen=True):
    """Rows of the audit, the newest first."""

    rows: list[AuditEntry]


class Verified(Struct, frozen=True):
    """Whether rules, tokens and audit are as limen wrote them."""

    holds: bool
    problem: str | None = None
    """The first value that was not written by limen."""


class Instances(Struct, frozen=True):
    """The processes that enforce rules, as far as is known."""

    shared: bool
    """Whether Redis listed all of them; otherwise only this process is listed."""
    instances: list[Instance]


class KillSwitch(Switch, frozen=True, kw_only=True):
    """The kill switch of this host: rules that it covers refuse nothing."""

    on: bool


class KillSwitchResult(KillSwitch, frozen=True, kw_only=True):
    """The new state of the kill switch, and where it is in force."""

    other_hosts: Reached
    """`none`: without Redis, the switch is for this host alone."""
    audited: bool
    """Whether it is in the audit: the switch works without the database too."""
    warning: str | None
    """The reason for which the switch is not saved on this host, and where it is in force; null if
    it is saved."""


class DataPlaneInfo(Struct, frozen=True):
    """The listener that serves decisions."""

    url: str
    """Its address by the settings, `http://127.0.0.1:8080`. Behind a proxy it differs."""
    token_required: bool
    """Whether requests for decisions need a token."""


class Stats(Struct, frozen=True, kw_only=True):
    """The decisions of one process since its start, and its health."""

    instance: str
    """The process that answers."""
    host: str
    pid: int
    since: float
    """The start of counting, in seconds since 1970."""
    allowed: int
    refused: int
    degraded: int
    """Decisions without the store."""
    refused_by: dict[str, int]
    """By rule."""
    shards: list[ShardState]
    """The servers of the store; empty for a store in memory."""
    data_plane: DataPlaneInfo
    health: Health
