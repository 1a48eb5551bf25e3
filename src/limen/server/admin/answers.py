"""What the administration answers, field by field. Only a new token comes with its secret."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from limen.rules.diff import Kind
from limen.rules.stores.records import Action
from limen.rules.stores.tokens import Role, TokenState
from limen.server.admin.edits import State
from limen.server.admin.kinds import Document, Mode, Model, refer

Reached = Literal["reached", "not reached", "none"]


class ProblemAt(Model):
    """One thing that is wrong, and where."""

    path: str
    """Where in the document: `rules[2].limits`; empty for the whole of it."""
    message: str
    line: int | None = None
    """The line in the text, from 1; null when there is no text."""


class RuleSummary(Model):
    """One rule in a few words."""

    name: str
    description: str
    mode: Mode
    enforce_percent: float
    match: dict[str, Any]
    key: list[str]
    limits: list[str]
    """All that it allows: `["100/minute", "pro: 600/minute", "3 at once, lease 60s"]`."""
    overrides: int
    """How many keys have limits of their own."""
    state: State
    """Whether it holds now, by `starts` and `ends`."""


class VersionSummary(Model):
    """One version of the rules, without the rules."""

    version: int
    parent: int
    """The version it was made from; 0 for the first."""
    author: str
    comment: str
    created_at: datetime
    digest: str
    active: bool
    """Whether these are the rules that hold now."""
    summary: str
    """How much was added, changed and removed: `+1 ~2 -0`."""


class ChangeMade(Model):
    """One difference between two versions."""

    kind: Kind
    path: str
    """Where: `rules.search-per-user.limits`."""
    before: Any
    after: Any


class Saved(VersionSummary):
    """A version, and what is different from its parent."""

    changes: list[ChangeMade]


class WholeVersion(Saved):
    """A version with its rules."""

    document: Document


class ActiveRules(Model):
    """The rules that hold."""

    source: Literal["database", "file"]
    """Where they live. Those in a file cannot be changed here."""
    version: int | None
    """The active version; 0 when there is none yet; null when they are in a file."""
    latest: int | None
    """The newest version, active or not: the `base` of the next edit. Null for a file."""
    in_force: str
    """The rules that this process runs: the version, or the digest of the file."""
    author: str | None
    comment: str | None
    created_at: datetime | None
    document: Document
    rules: list[RuleSummary]


class OneRule(RuleSummary):
    """A rule, and how it is written."""

    version: int | None
    """The version it was taken from; null for a file."""
    document: dict[str, Any]
    """The rule as it stands in the rule set."""


class Validated(Model):
    """What there is to say about rules. Nothing was saved."""

    valid: bool
    problems: list[ProblemAt]
    advice: list[ProblemAt]
    """What is valid, and surely not meant."""
    document: Any = None
    """The rules as data, if that was wanted and they can be read."""
    text: str | None = None
    """The rules as YAML, if that was wanted and they are valid."""


class Diff(Model):
    """What is different between two versions."""

    before: int
    """0 is no rules at all."""
    after: int
    summary: str
    lines: list[str]
    """A line for each change: `~ rules.api.limits: 100/minute -> 200/minute`."""
    changes: list[ChangeMade]


class OverrideOf(Model):
    """An override, and where it stands."""

    rule: str
    key: dict[str, Any]
    limits: str | list[str]
    description: str
    starts: str | None
    ends: str | None
    state: State


class OverrideSaved(Model):
    """An override that was saved, and the version that has it."""

    override: OverrideOf
    version: Saved


class Overrides(Model):
    """Every override of every rule."""

    version: int | None
    overrides: list[OverrideOf]


class ExemptionOf(Model):
    """An exemption."""

    name: str
    description: str
    match: dict[str, Any]
    rules: list[str] | None
    """Null is all."""
    starts: str | None
    ends: str | None
    state: State


class ExemptionSaved(Model):
    """An exemption that was saved, and the version that has it."""

    exemption: ExemptionOf
    version: Saved


class Exemptions(Model):
    """Every exemption."""

    version: int | None
    exemptions: list[ExemptionOf]


class BlockOf(Model):
    """A rule that refuses whoever matches."""

    name: str
    description: str
    match: dict[str, Any]
    starts: str | None
    ends: str | None
    state: State


class BlockSaved(Model):
    """A block that was saved, and the version that has it."""

    block: BlockOf
    version: Saved


class Blocks(Model):
    """Every rule that blocks."""

    version: int | None
    blocks: list[BlockOf]


class Condition(Model):
    """One condition of a rule, held against the request."""

    attribute: str
    asked: str
    """What the rule asks for: `is /search/*`. Ends in `...` when it has more than 200 characters.
    """
    got: str | None
    """What the request has; null when it is absent. Shortened as `asked` is."""
    holds: bool


class RuleAccount(Model):
    """What one rule has to do with a request."""

    rule: str
    mode: Mode
    applies: bool
    because: str | None
    """What stands against the rule; null when it applies."""
    conditions: list[Condition]
    """Those that do not hold come first, if some are left out."""
    conditions_left_out: int
    """How many are not in `conditions`: all rules together have at most 2,000 there."""


class Explained(Model):
    """Why each rule applies to a request, or does not; and what they say to it together."""

    version: str
    """The rules that were asked: those that this process runs."""
    exempt: list[str]
    """The exemptions that the request comes under, at most 1,000."""
    exempt_left_out: int
    """How many are not in `exempt`."""
    unused: list[str]
    """Attributes that no rule looks at."""
    rules: list[RuleAccount]
    """At most 1,000: the one that was asked for, those that apply, and then others."""
    rules_left_out: int
    """How many are not in `rules`."""
    verdict: Annotated[dict[str, Any], refer("Verdict")]
    """The verdict of `/v1/check`, with nothing charged. A key has at most 200 characters here, and
    a list at most 1,000 members."""


class WasReset(Model):
    """What was forgotten."""

    rules: list[str]
    """The rules under which the counters are gone; none when no rule counts such a request."""


class TokenOf(Model):
    """What is known of a token. Its secret is not."""

    id: str
    role: Role
    name: str
    state: TokenState
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class NewToken(TokenOf):
    """A token that was created just now."""

    secret: str
    """What its holder sends. It is kept nowhere, and never told again."""


class Tokens(Model):
    """Every token, the newest first."""

    tokens: list[TokenOf]


class Versions(Model):
    """Versions of the rules, the newest first."""

    versions: list[VersionSummary]


class AuditEntry(Model):
    """Who did what, and when."""

    id: int
    at: datetime
    actor: str
    action: Action
    version: int | None
    """The version that was saved or activated; null when it is about something else."""
    before: int
    """The version that was active before; 0 for none."""
    subject: str
    """What else it is about: `token 3f2a91c0 (check)`."""
    comment: str
    hash: str
    """Of this row and all before it."""


class Audit(Model):
    """Rows of the audit, the newest first."""

    rows: list[AuditEntry]


class Verified(Model):
    """Whether rules, tokens and audit are as limen wrote them."""

    holds: bool
    problem: str | None
    """The first thing that was changed past limen."""


class InstanceOf(Model):
    """A process that enforces rules."""

    id: str
    host: str
    pid: int
    version: str
    """The rules that it runs; empty when it has none."""
    source: str
    """Where it took them from."""
    started_at: float
    """Seconds since 1970."""
    switch_at: float
    """When the kill switch that it follows was turned, in seconds since 1970; 0 for never."""


class Instances(Model):
    """The processes that enforce rules, as far as is known."""

    shared: bool
    """Whether Redis told of all of them; else it is this process alone."""
    instances: list[InstanceOf]


class KillSwitch(Model):
    """How the kill switch of this host stands: rules that it covers refuse nobody."""

    on: bool
    all: bool
    """Whether it covers all rules."""
    rules: list[str]
    """The rules that it covers, if not all."""
    at: float
    """When it was turned, in seconds since 1970; 0 is never."""
    by: str


class Turned(KillSwitch):
    """How the kill switch stands now, and who knows of it."""

    other_hosts: Reached
    """`none`: without Redis there is no way to others, and the switch is this host's alone."""
    audited: bool
    """Whether it stands in the audit: the switch works without the database too."""
    warning: str | None
    """Why the switch is not saved on this host, and where it is in force; null if it is saved."""


class ShardOf(Model):
    """How one server of the store is doing, as the process that answers sees it."""

    where: str
    """Its address, without a password."""
    state: Literal["closed", "open"]
    """That of its circuit breaker: open means that it is left alone until it answers."""
    opened: int
    """How often that has happened."""
    fault: str
    """The kind of the last fault since all was well; empty without one."""
    faults: dict[str, int]
    """How many there were of each kind. `rights` and `tls` are faults of configuration."""


class Stats(Model):
    """What one process has decided since it started, and how it is. Others count by themselves."""

    instance: str
    """The process that answers."""
    host: str
    pid: int
    since: float
    """When counting began, in seconds since 1970."""
    allowed: int
    refused: int
    degraded: int
    """Decisions that somebody else than the store made."""
    refused_by: dict[str, int]
    """By rule."""
    shards: list[ShardOf]
    """The servers of the store; none without one."""
    health: Annotated[dict[str, Any], refer("Health")]
