"""What asks a server and stands in for it, made wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, mutants_of

IN_STORE: tuple[Mutant, ...] = (
    *mutants_of(
        "backends/redis/script.py",
        "tests/backends/test_script_requests.py -k valkey",
        r"""
        seconds-without-microseconds
        - time[1] * 1000000 + time[2]
        + time[1] * 1000000
        shadow-not-sent
        - flags = _ENFORCE if enforce else 0
        + flags = _ENFORCE
        peek-sent-as-a-charge
        - head = b"\1\1" if charge else b"\2\1"
        + head = b"\1\1"
        count-denied-not-sent
        - _COUNT_DENIED if limit.count_denied else 0
        + 0
        by tests/backends/test_script.py -k 'valkey and packed_window'
        burst-not-sent
        -             limit.capacity,
        +             limit.quota,
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        """,
    ),
    *mutants_of(
        "backends/redis/batch.py",
        "tests/backends/test_batch.py",
        """
        script-not-sent-again
        - return Again(in_full=True)
        + return fault_of(reply, where)
        asking-dropped
        - pack_command(("ASKING",)) + command if first.asking else command
        + command
        sent-on-without-asking
        - asking=word == "ASK")
        + asking=False)
        redirected-without-the-script
        - (request.in_full and address is not None)
        + False
        slots-in-one-call
        - kind = (request.slot, request.asking, request.in_full)
        + kind = (0, request.asking, request.in_full)
        too-many-keys
        - call is None or call.keys + len(request.keys) > MAX_KEYS
        + call is None
        any-length-is-an-answer
        - len(reply) == request.answer_bytes and reply[0] == 1
        + reply[0] == 1
        replica-is-a-fault
        - Again(fresh=True) if "READONLY" in message else fault_of(message, where)
        + fault_of(message, where)
        replica-is-greeted
        - role[0] != b"master"
        + False
        subjects-apart-are-together
        - return len(subjects) == 1 or
        + return True or
        by tests/conformance/test_several.py -k 'cluster-Limiter'
        """,
    ),
    *mutants_of(
        "backends/redis/across.py",
        "tests/conformance/test_several.py -k 'cluster-Limiter'",
        """
        nothing-given-back
        - undo = [] if admitted or not charge else
        + undo = [] if True else
        shadow-charged-for-a-refusal
        - requests(shadows, charge and admitted)
        + requests(shadows, charge)
        shadow-has-a-say
        - enumerate(checks) if check.enforce == enforce]
        + enumerate(checks) if enforce]
        refund-at-one-node-only
        - for part in _parts(packer, change)]
        + for part in _parts(packer, change)[:1]]
        what-is-left-not-asked-again
        - take(charged, replies[len(undo) :])
        peek-charges
        - Step(requests(enforced, charge), reserves=charge)
        + Step(requests(enforced, True), reserves=charge)
        by tests/backends/test_batch.py
        slot-not-given-back
        - changes.append(Release(check, holder))
        + pass
        by tests/backends/test_batch.py
        last-fault-counts
        - if faults is None or reply.may_have_run:
        + if True:
        by tests/backends/test_batch.py
        fault-overlooked
        - faults = reply
        + pass
        by tests/backends/test_batch.py
        fault-keeps-what-was-reserved
        - yield Step(undo, undoes=len(undo), behind=True)
        + pass
        by tests/backends/test_batch.py
        """,
    ),
    *mutants_of(
        "backends/circuit_breaker.py",
        "tests/backends/test_circuit_breaker.py",
        """
        one-failure-more
        - self._in_row >= FAILURES
        + self._in_row > FAILURES
        answers-change-nothing
        -             self._in_row = 0
        -             if not
        +             if not
        poisoned-key-opens-it
        - if fault.kind in PASSING:
        + if False:
        slow-is-not-bad
        - if not self._is_too_much(now, is_slow):
        + if not self._is_too_much(now, False):
        two-calls-are-many
        - self._calls >= _MANY and
        + self._calls >= 2 and
        less-than-half-is-half
        - self._bad * 2 >= self._calls
        + self._bad * 3 >= self._calls
        second-without-end
        - if now >= self._window_ends:
        + if self._window_ends < 0:
        opened-again-and-again
        - if self.is_open:
        -             return False
        + if False:
        +             return False
        everybody-tends
        - if not self.is_open or now < self._tended_until:
        + if not self.is_open:
        all-come-back-at-once
        - return usual * CHANCE.uniform(0.5, 1.5)
        + return usual
        two-tend-it
        - if not self.is_open or tender != self._tender:
        + if not self.is_open:
        everybody-tries
        - if self._try_at is None or now < self._try_at:
        + if self._try_at is None:
        """,
    ),
    *mutants_of(
        "_internal/connection_pool.py",
        "tests/backends/test_pool.py",
        """
        newest-first
        - self._waiting.popleft().set_result(connection)
        + self._waiting.pop().set_result(connection)
        one-too-many
        - if count >= self._max_connections:
        + if count > self._max_connections:
        one-for-each-caller
        - if len(self._openings) >= len(self._waiting):
        + if False:
        refusal-of-one-fails-all
        -                 return
        -             self._fail_waiting(error)
        -         self._on_failure(error)
        +                 pass
        +             self._fail_waiting(error)
        +         self._on_failure(error)
        close-forgets-those-that-wait
        - self._fail_waiting(PoolClosed("the limiter was closed"))
        + pass
        closed-pool-is-used-again
        -         for connection in self._connections:
        -             connection.is_current = False
        +         for connection in ():
        +             connection.is_current = False
        """,
    ),
    *mutants_of(
        "backends/redis/exchange.py",
        "tests/backends/test_pool.py",
        """
        silence-keeps-the-connection
        - if fault.kind == "timeout" and connection.late_s() <= self.server.breaker.slow_s:
        + if fault.kind == "timeout":
        time-out-closes-the-connection
        - if fault.kind == "timeout" and connection.late_s() <= self.server.breaker.slow_s:
        + if False:
        sent-too-late
        - if self._deadline.left() < self.server.needed_s:
        + if False:
        half-a-packet-is-kept
        - self._break(fault_of(error, self.server.where))
        + self._not_received(connection, fault_of(error, self.server.where))
        """,
    ),
    *mutants_of(
        "backends/redis/exchange.py",
        "tests/faults/test_late_replies.py -k threads",
        """
        late-reply-is-the-next-ones
        - connection.skip_late_replies(deadline, _replies(self._calls))
        + connection.skip_late_replies(deadline, 10)
        reply-that-came-twice-is-heard-twice
        - if is_suspicious(strange) or connection.has_extra_data():
        + if is_suspicious(strange):
        """,
    ),
    *mutants_of(
        "backends/redis/aio_lane.py",
        "tests/shared/test_lanes.py -k halves",
        """
        behind-one-all-the-others
        - together = waiting + sum([len(call.waiters) for call in self._calls])
        -         if together >= _WORTH_TWO:
        + together = waiting
        +         if together >= _WORTH_TWO and not self._in_flight:
        a-third-packet
        - if waiting > most and not self._in_flight:
        + if waiting > most:
        """,
    ),
    *mutants_of(
        "backends/redis/aio_lane.py",
        "tests/faults/test_late_replies.py -k tasks",
        """
        late-reply-is-the-next-ones
        -         self._lose(fault)
        -         return NEVER_S
        +         self._in_flight -= self._calls.popleft().ends_packet
        +         return NEVER_S
        reply-that-came-twice-is-heard-twice
        - if not self._calls and reader.has_data():
        + if False:
        """,
    ),
    *mutants_of(
        "_internal/deadline.py",
        "tests/backends/test_deadline.py",
        """
        pauses-count
        - (step_s if step_s < self._max_step_s else self._max_step_s)
        + step_s
        only-one-step-is-measured
        -         self._ticked_at_s = time.monotonic()
        -         return self._value_s
        +         return self._value_s
        every-reading-is-a-tick
        -         step_s = time.monotonic() - self._ticked_at_s
        +         step_s = time.monotonic() - self._ticked_at_s
        +         self._ticked_at_s += step_s
        waits-longer-than-a-tick
        - return max(min(self.left(), self._clock.tick_s), 0.0)
        + return max(self.left(), 0.0)
        """,
    ),
    *mutants_of(
        "backends/redis/aio_lane.py",
        "tests/faults/test_pauses.py -k connecting",
        """
        pause-while-connecting-is-a-fault
        - if fault_of(error, self._where).kind != "timeout" or not is_ours:
        + if True:
        """,
    ),
    *mutants_of(
        "algorithms/last_reading.py",
        "tests/algorithms/test_last_reading.py",
        """
        age-forgotten
        - read_us = now_us - last.age_us
        + read_us = now_us - 2 * last.age_us
        freed-at-once
        - ((first, retry_us), (used - first, reset_us))
        + ((first, 0), (used - first, reset_us))
        all-freed-at-retry-after
        - ((first, retry_us), (used - first, reset_us))
        + ((first, retry_us), (used - first, retry_us))
        none-freed-at-retry-after
        - first = min(used, _part(max(over, 0), instances))
        + first = 0
        bucket-full-again
        - read_us + reset_us, read_us
        + read_us, read_us
        window-of-a-whole-period
        - state.end_us, state.count = read_us + reset_us, used
        + state.end_us, state.count = read_us + limit.period_us, used
        previous-window-not-scaled
        - state.previous = -(-used * period_us // reset_us)
        + state.previous = used
        every-instance-takes-all-that-is-left
        - limit.capacity - _part(remaining, instances)
        + limit.capacity - remaining
        """,
    ),
    *mutants_of(
        "last_readings.py",
        "tests/test_guarded.py -k LastReading",
        """
        read-twice
        - self._recent.pop(key, None) or older
        + self._recent.get(key) or older
        older-than-recent
        - entry = self._recent.pop(key, None) or older
        + entry = older or self._recent.pop(key, None)
        without-bound
        - if len(recent) >= _MAX_RECENT and self._recent is recent:
        + if False:
        """,
    ),
    *mutants_of(
        "guarded.py",
        "tests/test_guarded.py -k LastReading",
        """
        reading-not-used
        - if last is not None:
        + if False:
        continued-count-has-no-say
        - fits = _all_allowed(known, continued)
        + fits = True
        continued-count-is-not-charged
        - prepared = self._continued.prepare(known, True, holder)
        + prepared = self._continued.prepare(known, False, holder)
        refund-leaves-the-continued-count-charged
        -             self._continued.change(_with_charges(change, continued))
        +             pass
        continued-count-replaces-the-local-one
        - min(local[1], continued[1])
        + continued[1]
        reading-survives-a-reset
        -                 self._last_readings.take(check)
        +                 pass
        """,
    ),
    *mutants_of(
        "guarded.py",
        "tests/test_guarded.py -k TestChanges",
        """
        closed-shadow-shuts
        - any(source == "closed" and check.enforce for
        + any(source == "closed" for
        by tests/test_guarded.py -k 'TestDeadStore and shadow'
        closed-charges-the-others
        - charge and not is_shut, holder)
        + charge, holder)
        by tests/test_guarded.py -k 'TestMixed'
        whole-instead-of-share
        - shares = tuple([self._share(check) for check in checks])
        + shares = tuple(checks)
        by tests/test_guarded.py -k 'TestShare'
        receipt-of-the-store-used-here
        - if receipt.source != "local":
        + if False:
        reset-that-was-not-done
        - raise StoreError(str(fault))
        + return False
        nothing-owed
        - self._add(check)
        + pass
        by tests/test_guarded.py -k TestDebts
        owed-though-it-may-have-run
        - if local and charge and not fault.may_have_run:
        + if local and charge:
        by tests/test_guarded.py -k TestDebts
        debt-of-a-period-that-is-over
        - units = min(check.cost, self._used(check))
        + units = check.cost
        by tests/test_guarded.py -k TestDebts
        only-the-last-debt
        - check = _at(check, min(known.cost + check.cost, MAX_COST))
        + pass
        by tests/test_guarded.py -k TestDebts
        """,
    ),
)
