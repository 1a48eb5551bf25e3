"""What decides in this process, made wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, mutants_of

_PURE = " ".join(f"tests/algorithms/test_{each}.py" for each in ("tables", "bounds", "properties"))
"""What is said of an algorithm: worked timelines first, as they are quick."""

IN_PYTHON: tuple[Mutant, ...] = (
    *mutants_of(
        "algorithms/fixed_window.py",
        f"{_PURE} -k 'fixed_window or calendar or month'",
        """
        comparison-flipped
        - if after > quota and cost:
        + if after >= quota and cost:
        boundary-belongs-to-the-past
        - same = start_us <= t_us < end_us
        + same = start_us <= t_us <= end_us
        retry-a-microsecond-early
        - retry_us = end_us - t_us if
        + retry_us = end_us - t_us - 1 if
        step-back-forgotten
        - self.offset_us += start_us - t_us
        forgotten-at-its-end
        - return 2 * self.end_us - self.start_us
        + return self.end_us
        refund-of-another-window
        - if not start_us <= stamp_us <= t_us:
        + if not stamp_us <= t_us:
        month-of-30-days
        - timedelta(days=31)
        + timedelta(days=30)
        """,
    ),
    *mutants_of(
        "algorithms/sliding_counter.py",
        f"{_PURE} -k 'sliding_counter'",
        """
        comparison-flipped
        - if seen + cost > quota and cost:
        + if seen + cost >= quota and cost:
        weight-rounded-down
        - seen -= -previous * left //
        + seen += previous * left //
        ticks-rounded-down
        - left = -((t_us - start_us - period_us) // tick_us)
        + left = (start_us + period_us - t_us) // tick_us
        previous-forgotten
        - start_us + period_us, 0, self.current
        + start_us + period_us, 0, 0
        retry-of-the-wrong-window
        - if current <= free:
        + if current >= free:
        refund-of-what-has-left
        - stamp_us >= start_us - self.limit.period_us
        + stamp_us >= 0
        debt-uncapped
        - min(current + cost, 2 * self.limit.quota)
        + current + cost
        """,
    ),
    *mutants_of(
        "algorithms/exact_window.py",
        "tests/algorithms/test_tables.py",
        """
        one-too-many
        - if over > 0 and cost:
        + if over > 1 and cost:
        stamp-leaves-too-late
        - self.oldest_us <= t_us - period_us:
        + self.oldest_us < t_us - period_us:
        by tests/algorithms/test_properties.py -k 'remaining and packed_window'
        retry-of-the-next-stamp
        - leaving = expired + over - 1
        + leaving = expired + over
        min-interval-dropped
        - if limit.min_interval_us and
        + if False and
        count-denied-ignored
        - elif limit.count_denied and
        + elif False and
        refund-of-what-has-left
        - not t_us - self.limit.period_us < stamp_us <= t_us
        + not stamp_us <= t_us
        step-back-forgotten
        - self.offset_us += self.newest_us - t_us
        -             t_us = self.newest_us
        + pass
        by tests/algorithms/test_bounds.py -k 'packed_window or rolling_window'
        refusals-push-out-more-than-come
        - expired + min(max(over, 0), cost)
        + expired + max(over, 0)
        by tests/limiter/test_limiter.py
        refund-keeps-the-newest
        - self.newest_us = self.at(self.count - 1)
        + pass
        by tests/backends/test_script.py -k 'valkey and (packed_window or leaves)'
        """,
    ),
    *mutants_of(
        "algorithms/packed_window.py",
        "tests/algorithms/test_tables.py",
        """
        place-too-narrow
        - if self.limit.period_us > _NARROW and
        + if self.limit.period_us > _WIDE and
        halving-is-one-off
        - if (newest_us - stamps[middle]) & mask >= far:
        + if (newest_us - stamps[middle]) & mask > far:
        start-forgotten
        - self.stamps[self.start + index]
        + self.stamps[index]
        """,
    ),
    *mutants_of(
        "algorithms/token_bucket.py",
        f"{_PURE} -k 'token_bucket or leaky_bucket or refunds_in_any_order'",
        """
        remainder-ignored
        - if after_rem > limit.fill_rem:
        + if after_rem > limit.quota:
        step-back-refills
        - used_us > 0 and t_us >= self.newest_us and
        + used_us > 0 and
        new-quota-forgives
        - if written is not limit and written.quota != limit.quota:
        + if False:
        max-delay-a-microsecond-long
        - late_us = delay_us - limit.max_delay_us
        + late_us = delay_us - limit.max_delay_us - 1
        remaining-rounded-up
        - limit.capacity + -(used_us
        + limit.capacity - (used_us
        refund-of-what-has-drained
        - min(drain_time(limit, cost), left, (used_us, used_rem))
        + min(drain_time(limit, cost), (used_us, used_rem))
        shift-forgotten
        - self.shift_us = _shifted(self.shift_us, back_us + (1 if back_rem else 0))
        + pass
        by tests/limiter/test_limiter.py
        debt-uncapped
        - *min((after_us, after_rem), most, (_FAR_US, 0)))
        + after_us, after_rem)
        """,
    ),
    *mutants_of(
        "algorithms/concurrency.py",
        "tests/algorithms/test_tables.py",
        """
        one-too-many
        - len(ends_us) < limit.slots
        + len(ends_us) <= limit.slots
        own-slot-forgotten
        - allowed = holder in ends_us or len
        + allowed = len
        lease-ends-too-late
        - if end_us > t_us}
        + if end_us >= t_us}
        ended-lease-renewed
        - if holder not in ends_us:
        + if holder not in self.ends_us:
        step-back-frees
        - self.offset_us += self.newest_us - t_us
        -             t_us = self.newest_us
        + pass
        """,
    ),
    *mutants_of(
        "backends/memory.py",
        "tests/conformance/test_several.py -k 'memory-Limiter'",
        """
        charge-on-refusal
        - if admitted or (check.enforce and not readings[index][0]):
        + if True:
        count-denied-alone-only
        - if admitted or (check.enforce and not readings[index][0]):
        + if admitted:
        shadow-has-a-say
        - zip(checks, readings, strict=True) if check.enforce
        + zip(checks, readings, strict=True)
        trying-charges
        - self._decide(check, now_us, False, holder)
        + self._decide(check, now_us, charge, holder)
        refunded-twice
        - self._markers.add(marker_key, marker, now_us)
        + pass
        by tests/limiter/test_limiter.py
        one-receipt-for-all
        - marker_key = f"{change.receipt.id}{key}"
        + marker_key = key
        by tests/limiter/test_limiter.py
        refunded-without-a-marker
        - if more <= 0 and not has_room:
        + if False:
        by tests/backends/test_memory.py
        debt-of-a-new-key-is-lost
        - if known is None:
        -                 self._states.add(key, state, now_us)
        by tests/backends/test_memory.py
        marker-of-the-state-before
        - marker = Marker(state.expires_us, state.offset_us)
        -             if known
        + if known
        by tests/backends/test_memory.py
        peeks-leave-states
        - if state.expires_us > now_us:
        + if True:
        by tests/backends/test_memory.py
        """,
    ),
    *mutants_of(
        "backends/expiring.py",
        "tests/backends/test_memory.py",
        """
        one-too-many
        - return len(self.entries) < self._most or
        + return len(self.entries) <= self._most or
        refused-go-first
        - slice_, place = max(sample, key=spare)
        + slice_, place = min(sample, key=spare)
        used-since-is-forgotten
        - if entry.expires_us - entry.offset_us <= now_us:
        + if True:
        never-forgets
        - if entry.expires_us - entry.offset_us <= now_us:
        + if False:
        """,
    ),
    *mutants_of(
        "keys.py",
        "tests/test_keys.py",
        """
        without-a-tag
        - return f"{namespace}:{{{tag}}}{check
        + return f"{namespace}:{tag}{check
        tag-of-the-user
        - {{{escaped(key, _MAX_TEXT)}}}
        + {{{key}}}
        digest-unmarked
        - return DIGEST_MARK + check.limit.identity
        + return check.limit.identity
        one-marker-for-all
        - return f"{key}#{receipt_id}"
        + return f"{key}#"
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        """,
    ),
    *mutants_of(
        "model/decision.py",
        "tests/conformance/test_several.py -k 'memory-Limiter'",
        """
        shortest-wait-binds
        - if wait > longest:
        + if refusing < 0 or wait < longest:
        furthest-binds
        - if its_left * capacity < left * its_capacity:
        + if capacity == 0 or its_left * capacity > left * its_capacity:
        last-of-equals-binds
        - if its_left * capacity < left * its_capacity:
        + if its_left * capacity <= left * its_capacity:
        by tests/model/test_binding.py
        """,
    ),
    *mutants_of(
        "limiter/plan.py",
        "tests/conformance/test_several.py -k 'memory-Limiter'",
        """
        shadow-refuses
        - candidates = [part for part in parts if part.enforce] or parts
        + candidates = parts
        without-a-delay
        - if allowed and bound.enforce else 0.0
        + if False else 0.0
        retry-after-of-a-shadow
        - 0.0 if allowed else bound.retry_after
        + bound.retry_after
        same-state-twice
        - if other is not check:
        + if False:
        by tests/limiter/test_limiter.py
        """,
    ),
    *mutants_of(
        "model/limit.py",
        "tests/test_guarded.py -k 'TestShare'",
        """
        share-rounded-down
        - -(-self.quota // instances)
        + max(self.quota // instances, 1)
        burst-not-shared
        - -(-self.burst // instances)
        + self.burst
        slots-not-shared
        - -(-self.slots // instances)
        + self.slots
        name-forgotten
        - {escaped(name or '', DIGEST_LENGTH)}|
        + |
        by tests/limiter/test_limiter.py
        products-beyond-a-double
        - >= _DOUBLE // 2:
        + >= _DOUBLE * 1_000:
        by tests/backends/test_script.py -k 'valkey and (ticks or products)'
        """,
    ),
)
