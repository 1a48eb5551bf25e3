"""One caller in several lanes at once: what it does next, while it waits for all of them.

Others stand in the same lanes, behind whatever we lead. So nobody is to wait for one server because
we wait for another: a reply is read when it begins to come, and a lead that is handed to us is
taken. What is not seen to is a server that stops in the middle of a reply, or owes older ones.
"""

from __future__ import annotations

import selectors

from limen.backends.redis.deadline import Deadline
from limen.backends.redis.sync_lane import Lane, Ticket

_GLANCE_S = 0.002
"""How often who waits for one server looks whether it is his turn at another."""

Place = tuple[Lane, Ticket]


def finish_all(by_lane: dict[Lane, list[Ticket]], deadline: Deadline) -> None:
    """Bring tickets that were started to their answers; all of them have this deadline."""
    left = [(lane, ticket) for lane, started in by_lane.items() for ticket in started]
    while left := [each for each in left if each[1].answer is None]:
        for lane, ticket in _up(left, deadline):
            lane.step(ticket)


def _up(left: list[Place], deadline: Deadline) -> list[Place]:
    """Return for which of them there is something to do now; wait for a moment if for none."""
    wait_s = deadline.next_wait()
    if len(left) == 1 or wait_s <= 0:
        # There is nothing else to do than to wait; or no time.
        return left
    leads = [each for each in left if each[1].lead is not None]
    unsent = [(lane, ticket) for lane, ticket in leads if not _awaits_reply(ticket)]
    if unsent or (leads and len({lane for lane, _ in left}) == 1):
        return unsent or leads
    if leads:
        return _readable(leads, wait_s if len(leads) == len(left) else min(wait_s, _GLANCE_S))
    # Others lead. Where the next answer comes is not known, but each opens a gate: it stays open.
    gate = left[0][1].gate
    if gate.acquire(timeout=min(wait_s, _GLANCE_S)):
        gate.release()
        return left[:1]
    return []


def _awaits_reply(ticket: Ticket) -> bool:
    lead = ticket.lead
    return lead is not None and lead.is_sent and lead.wire is not None


def _readable(leads: list[Place], seconds: float) -> list[Place]:
    """Return those whose replies begin to come, within some seconds."""
    by_socket = {
        lead.wire.socket: (lane, ticket)
        for lane, ticket in leads
        if (lead := ticket.lead) is not None and lead.wire is not None
    }
    with selectors.DefaultSelector() as selector:
        for each in by_socket:
            selector.register(each, selectors.EVENT_READ)
        return [by_socket[key.fileobj] for key, _ in selector.select(seconds)]  # type: ignore[index]  # it was registered
