"""What tools/tidy checks, one module a rule. A check is a function from Tree to a list of Findings."""

from checks import banned, dead, errors, formatting, includes, policy, promises, readmes, sizes
from checks.tree import Finding, Tree

CHECKS = {
    "sizes": sizes.check,
    "includes": includes.check,
    "banned": banned.check,
    "dead": dead.check,
    "errors": errors.check,
    "policy": policy.check,
    "promises": promises.check,
    "readmes": readmes.check,
    "format": formatting.check,
}

__all__ = ["CHECKS", "Finding", "Tree"]
