"""How rules reach every process: from the database, by way of Redis, and in spite of both."""

from limen.rules.sync.cache import Instance, RuleCache
from limen.rules.sync.entry import Poisoned
from limen.rules.sync.follow import Follower, Status
from limen.rules.sync.switch import Switch, SwitchFile

__all__ = ["Follower", "Instance", "Poisoned", "RuleCache", "Status", "Switch", "SwitchFile"]
