"""The HTTP server, the decision API and Envoy's service, made wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, mutants_of

IN_SERVICE: tuple[Mutant, ...] = (
    *mutants_of(
        "server/http/connection.py",
        "tests/server/test_protocol.py",
        """
        head-of-any-size
        -             if self._later_packets > self._max_header:
        +             if False:
        by tests/server/test_protocol.py -k never_ends
        any-number-of-headers
        - if len(self._headers) > MAX_HEADERS:
        + if False:
        by tests/server/test_protocol.py -k too_many_headers
        trailer-as-header
        - if self._in_head:
        + if True:
        by tests/server/test_protocol.py -k trailer
        any-pipeline
        - if len(self._pending) >= MAX_PIPELINED:
        + if False:
        by tests/server/test_protocol.py -k wait_in_line
        upgrade-with-a-body
        - if upgrades and _announces_body(headers):
        + if False:
        by tests/server/test_protocol.py -k upgrade
        body-of-any-length
        - if self._body_size > self._max_body:
        + if False:
        by tests/server/test_protocol.py -k too_large
        announced-body-of-any-length
        - if length is not None and int(length) > self._max_body:
        + if False:
        by tests/server/test_protocol.py -k too_large
        http-1-0-stays-open
        - parser.should_keep_alive() and not is_1_0 and not upgrades
        + parser.should_keep_alive() and not upgrades
        by tests/server/test_protocol.py -k http_1_0
        continue-before-earlier-responses
        - elif self._task is None and not self._pending:
        + elif True:
        by tests/server/test_protocol.py -k 'expects_100 or waits_for_100'
        responses-to-a-client-that-does-not-read
        - while self._pending and self._task is None and not self._write_paused:
        + while self._pending and self._task is None:
        by tests/server/test_protocol.py -k does_not_read
        half-closed-is-closed
        - if self._is_tls or (self._task is None and not self._pending):
        + if True:
        by tests/server/test_protocol.py -k half_a_connection
        reset-behind-the-last-response
        - if self._receiving or self._read_paused or self._is_cut:
        + if False:
        by tests/server/test_protocol.py -k overtaken
        linger-without-limit
        - self._discards, self._discard_left = True, _LINGER_BYTES
        + self._discards = True
        by tests/server/test_protocol.py -k sends_on_and_on
        slow-request-without-deadline
        -         self._request = None
        -         self._deadline = self._loop.time() + self._shared.limits.read_timeout
        +         self._request = None
        +         self._deadline = inf
        by tests/server/test_protocol.py -k trickles
        slow-reader-without-deadline
        - return now >= self._unsent_since + self._shared.limits.write_timeout
        + return False
        by tests/server/test_protocol.py -k cut_off
        repeated-host
        - if request.repeats(b"host"):
        + if False:
        by tests/server/test_request_head.py -k host
        any-host
        - if not is_host(host):
        + if False:
        by tests/server/test_request_head.py -k host
        next-request-before-the-response
        -         self._task = None
        -         if not self.transport.is_closing():
        +         if not self.transport.is_closing():
        by tests/server/test_protocol.py -k in_one_packet
        """,
    ),
    *mutants_of(
        "server/http/message.py",
        "tests/server/test_check.py -k id",
        """
        last-of-repeated-headers
        - named = dict(reversed(self.headers))
        + pass
        by tests/server/test_request_head.py -k first
        repeated-header-unseen
        - return [key for key, _ in self.headers].count(name) > 1
        + return False
        by tests/server/test_request_head.py -k repeated
        """,
    ),
    *mutants_of(
        "server/process/data_plane.py",
        "tests/server/test_request_head.py",
        """
        pages-of-other-sites
        - if origin is not None and not _LOCAL_ORIGIN.fullmatch(origin):
        + if False:
        by tests/server/test_service.py -k page
        open-with-a-wrong-token
        - if token is not None or not self._is_open:
        + if not self._is_open:
        by tests/server/test_request_head.py -k wrong_token
        """,
    ),
    *mutants_of(
        "server/api/response_templates.py",
        "tests/server/test_response_templates.py tests/server/test_check.py",
        """
        another-tier
        - return id(applied.rule), id(applied.allowance), enforce,
        + return id(applied.rule), enforce,
        another-mode
        - id(applied.allowance), enforce, applied.checks,
        + id(applied.allowance), applied.checks,
        another-cost
        - enforce, applied.checks, cost_by
        + enforce, applied.checks
        """,
    ),
    *mutants_of(
        "server/api/verdict_response.py",
        "tests/server/test_check.py tests/server/test_settle.py",
        """
        uncharged-on-the-receipt
        - if part.stamp_us != UNCHARGED:
        + if True:
        shadows-in-headers
        - results = tuple([part for part in results if part.enforce])
        + pass
        """,
    ),
    *mutants_of(
        "server/envoy/answer.py",
        "tests/server/envoy/test_answer.py",
        """
        first-limit-binds
        - return enforced[binding([parts[at] for at in enforced])] if enforced else None
        + return enforced[0] if enforced else None
        shadow-binds
        - return places[0] if parts[places[0]].enforce else None
        + return places[0]
        seconds-cut-off
        - seconds = varint(math.ceil(wait))
        + seconds = varint(int(wait))
        fallback-with-figures
        - if part.source not in COUNTED:
        + if False:
        """,
    ),
)
