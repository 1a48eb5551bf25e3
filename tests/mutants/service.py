"""The short way of the service, made wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, mutants_of

_QUICK = "tests/server/quick/test_heads.py tests/server/quick/test_answers.py"

IN_SERVICE: tuple[Mutant, ...] = (
    *mutants_of(
        "server/quick.py",
        f"{_QUICK} -k 'token or usual or pieces or head or ids'",
        """
        token-not-looked-at
        - if head.token is not None and not may_ask(self._access.known(head.token)):
        + if False:
        body-of-any-length
        - if head is None or len(packet) != end + head.length:
        + if head is None:
        unusual-taken
        - if any(each[0] in _UNUSUAL and each != _SAYS_NOTHING for each in headers):
        + if False:
        length-as-a-number
        - if len(said) != 1 or not _LENGTH.fullmatch(said[0]):
        + if len(said) != 1:
        length-of-another-head
        - if len(packet) != (end + length if is_whole else end):
        + if len(packet) not in (end, end + length):
        kept-at-once
        - if hash(lasting) not in self._seen:
        + if False:
        two-ids
        - if len(ids) > 1 or ids != [value for name, value in headers if name == _ID]:
        + if len(ids) > 1:
        any-id
        - if not GIVEN_ID.fullmatch(given):
        + if False:
        head-of-any-size
        - if found is not None or len(head) > self._max_header:
        + if found is not None:
        id-of-the-last
        - self._head = self._id = None
        + self._head = None
        head-of-the-last
        - self._head = self._id = None
        + self._id = None
        waits-behind-a-body
        - return self._head is not None and packet.find(_END) + len(_END) == len(packet)
        + return self._head is not None
        strangers-kept
        - if self._is_open if token is None else may_ask(self._access.known(token)):
        + if True:
        """,
    ),
    *mutants_of(
        "server/protocol.py",
        f"{_QUICK} -k 'meanwhile or order'",
        """
        held-lost-at-the-end
        - is_last = not self._held and (self._has_ended or self._shared.is_draining)
        + is_last = self._has_ended or self._shared.is_draining
        held-overtaken
        - elif self._is_quick or self._held:
        + elif False:
        sent-until-one-fails
        - except Exception as error:  # of one: the others are sent theirs all the same
        + except KeyError as error:
        by tests/server/quick/test_answers.py -k nobody_along
        more-time-for-a-body
        - self._deadline = min(self._deadline, latest)
        + pass
        by tests/server/quick/test_heads.py -k in_time
        silence-about-a-body
        - elif (self._is_reading or self._head) and not self._is_deaf:
        + elif self._is_reading and not self._is_deaf:
        by tests/server/quick/test_heads.py -k in_time
        body-cut-short-at-the-end
        - if not self._is_reading and not self._head and self._deadline < inf:
        + if not self._is_reading and self._deadline < inf:
        by tests/server/quick/test_heads.py -k waits_for_a_body
        reset-behind-the-last-answer
        - if not self._running.keep_alive:
        + if False:
        by tests/server/test_protocol.py -k overtaken
        sent-once
        - unsent, self._unsent = self._unsent, []
        + unsent = self._unsent
        """,
    ),
    *mutants_of(
        "server/passed.py",
        "tests/server/test_passed.py",
        """
        first-binds
        - begin, left, whole, binding_us = face.begin, remaining, its_whole, reset_us
        + left, whole, binding_us = remaining, its_whole, reset_us
        least-left-binds
        - if remaining * whole < left * its_whole:
        + if remaining < left:
        first-delay
        - if delay_us > longest_us:
        + if not standings:
        more-than-fits
        - if reset_us <= 0 or remaining > most:
        + if reset_us <= 0:
        more-than-fits-alone
        - if reset_us > 0 and left <= faces.most[0]:
        + if reset_us > 0:
        untouched-alone
        - if reset_us > 0 and left <= faces.most[0]:
        + if left <= faces.most[0]:
        uncharged-on-the-receipt
        - and all(check.cost for check in found.checks)
        another-s-key
        - tuple([known.setdefault(text, text) for text in map(_said, found.checks)]),
        + tuple([_said(found.checks[0]) for _ in found.checks]),
        another-s-charge
        - tuple([known.setdefault(text, text) for text in map(_charged, found.checks)]),
        + tuple([_charged(found.checks[0]) for _ in found.checks]),
        two-limits-of-a-rule
        - if not is_plain or any(len(of_rule) != 1 for of_rule in faces.by_rule):
        + if not is_plain:
        """,
    ),
    *mutants_of(
        "server/receipts.py",
        "tests/server/test_passed.py",
        """
        charge-is-a-format
        - (before.replace(b"%", b"%%"), behind.replace(b"%", b"%%"))
        + (before, behind)
        number-is-a-format
        - [_array(len(limits)).replace(b"%", b"%%")]
        + [_array(len(limits))]
        """,
    ),
    *mutants_of(
        "server/faces.py",
        "tests/server/test_faces.py tests/server/test_passed.py",
        """
        another-tier
        - return id(rule), id(applied.allowance), applied.enforce,
        + return id(rule), applied.enforce,
        another-mode
        - id(applied.allowance), applied.enforce, applied.checks,
        + id(applied.allowance), applied.checks,
        another-cost
        - applied.checks, applied.cost_by
        + applied.checks
        text-is-a-format
        - return _PART % tuple([_json(text).replace(b"%", b"%%") for text in texts])
        + return _PART % tuple([_json(text) for text in texts])
        """,
    ),
    *mutants_of(
        "server/envoy/answer.py",
        "tests/server/envoy/test_answer.py",
        """
        untouched
        - if reset_us <= 0 or remaining > most:
        + if remaining > most:
        more-than-fits
        - if reset_us <= 0 or remaining > most:
        + if reset_us <= 0:
        seconds-cut-off
        - reset_s = -(-reset_us // 1_000_000)
        + reset_s = reset_us // 1_000_000
        """,
    ),
    *mutants_of(
        "backends/redis/aio.py",
        f"{_QUICK} -k nobody_along",
        """
        told-until-one-fails
        - except Exception:  # of one: the others who wait for this reply are told all the same
        + except KeyError:
        """,
    ),
)
