"""Puts an engine together: recorded exchanges, redirect targets, gates, rules and faults, in the order that works."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.answers import error
from imagestore.testing.engine.engine import Engine, Explainer, Shaper
from imagestore.testing.engine.rules import Responder
from imagestore.testing.faults.answering import ForeignRealm
from imagestore.testing.faults.effect import Effect
from imagestore.testing.faults.redirecting import RedirectTargets
from imagestore.testing.faults.rule import FaultPlan, FaultRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.testing.engine.exchange import Reply, Request
    from imagestore.testing.engine.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine, and the fault plan inside it."""

    engine: Engine
    plan: FaultPlan


class Recorded(Responder, Explainer, Protocol):
    """Recorded answers."""

    def respond_open(self, request: Request) -> Reply | None:
        """The recorded content whatever credential it needed; None when there is none."""


class _Open:
    """Content without credentials, for what redirects lead to."""

    def __init__(self, rules: Responder, exchanges: Recorded | None) -> None:
        self._rules = rules
        self._exchanges = exchanges

    def respond(self, request: Request) -> Reply | None:
        recorded = self._exchanges.respond_open(request) if self._exchanges is not None else None
        return recorded or self._rules.respond(request)


class _Collectors:
    """The hosts that ForeignRealm names: they refuse, and the ledger shows what they were sent."""

    def __init__(self, rules: Sequence[FaultRule]) -> None:
        self._hosts = {rule.what.realm_host for rule in rules if isinstance(rule.what, ForeignRealm)}

    def respond(self, request: Request) -> Reply | None:
        if request.host not in self._hosts:
            return None
        return error(403, "DENIED", "this is the foreign token service of a fault", kind="token")


def assemble(
    rules: Responder,
    *,
    gates: Sequence[Responder] = (),
    exchanges: Recorded | None = None,
    faults: Sequence[FaultRule | Shaper] = (),
    ledger: Ledger | None = None,
) -> Assembly:
    """Make an engine.

    Args:
        rules: answers what nothing else does.
        gates: authentication in front of the rules.
        exchanges: recorded answers; they come first.
        faults: rules, and other shapers such as chaos(seed), which come after all rules.
        ledger: where requests are noted.

    Raises:
        InvalidInputError: ``faults`` is no list, or something in it is neither.
    """
    if not isinstance(faults, Iterable):
        raise InvalidInputError(f"faults: expected a list of rules, found {type(faults).__name__}")
    given = tuple(faults)
    fault_rules = [one for one in given if isinstance(one, FaultRule)]
    others = [_shaper(one) for one in given if not isinstance(one, FaultRule)]
    plan = FaultPlan(fault_rules)
    shapers = [plan, *others]
    recorded: list[Responder] = [exchanges] if exchanges is not None else []
    responders = [*recorded, RedirectTargets(_Open(rules, exchanges)), _Collectors(fault_rules), *gates, rules]
    return Assembly(Engine(responders, shapers=shapers, explainer=exchanges, ledger=ledger), plan)


def _shaper(given: Shaper | Effect) -> Shaper:
    """What is no rule; asked for an answer, anything else would break every connection, as if faults did."""
    if isinstance(given, (Effect, type)) or not hasattr(given, "shape"):
        found = type(given).__name__
        hint = f"write FaultRule({found}(...))" if isinstance(given, Effect) else ""
        raise InvalidInputError(f"faults: expected rules, found {found}", hint=hint)
    return given
