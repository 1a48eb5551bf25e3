"""What decides on the server, made wrong."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, mutants_of

IN_LUA: tuple[Mutant, ...] = (
    *mutants_of(
        "algorithms/prelude.lua",
        "tests/backends/test_script.py -k 'valkey and sliding_counter'",
        """
        ttl-in-seconds
        - / 1000 + TTL_MARGIN_MS
        + / 1000000 + TTL_MARGIN_MS
        """,
    ),
    *mutants_of(
        "algorithms/string_state.lua",
        "tests/backends/test_script.py -k 'valkey and sliding_counter'",
        """
        ttl-dropped
        - , "PX", ttl_ms(left_us))
        + )
        rounded-down
        - return rem > 0 and whole + 1 or whole
        + return whole
        asking-writes
        - if asking then
        + if false then
        by tests/backends/test_script.py -k 'valkey and several_checks'
        """,
    ),
    *mutants_of(
        "algorithms/fixed_window.lua",
        "tests/backends/test_script.py -k 'valkey and (fixed_window or months)'",
        """
        comparison-flipped
        - if after > quota and
        + if after >= quota and
        boundary-belongs-to-the-past
        - if t_us < end_us then
        + if t_us <= end_us then
        retry-a-microsecond-late
        - and end_us - t_us or NEVER_US
        + and end_us - t_us + 1 or NEVER_US
        offset-forgotten
        - count, t_us - now_us),
        + count, 0),
        step-back-not-kept
        - if stamp_us ~= UNCHARGED or stepped_back then
        + if stamp_us ~= UNCHARGED then
        forgotten-at-its-end
        -     2 * end_us - start_us - t_us)
        +     end_us - t_us)
        debt-uncapped
        - math.min(count + cost, 2 * limit.quota)
        + count + cost
        refund-of-another-window
        - if start_us <= stamp_us and stamp_us <= t_us then
        + if stamp_us <= t_us then
        month-too-late
        - local from_march = (month + 9) % 12
        + local from_march = (month + 10) % 12
        century-is-a-leap-year
        -       - math.floor(year_of_era / 100) + day_of_year
        +       + day_of_year
        from-first-by-the-clock
        - limit.flags >= FROM_FIRST and t_us or t_us
        + t_us
        window-of-another-length
        - span_us < shortest_us or
        + false or
        by tests/backends/test_script_states.py -k 'valkey and fixed_window'
        """,
    ),
    *mutants_of(
        "algorithms/sliding_counter.lua",
        "tests/backends/test_script.py -k 'valkey and (sliding_counter or ticks)'",
        """
        comparison-flipped
        - if seen + cost > quota and
        + if seen + cost >= quota and
        weight-rounded-down
        - seen = seen + ceil_div(previous * left,
        + seen = seen + divmod(previous * left,
        ticks-rounded-down
        - local left = ceil_div(
        + local left = divmod(
        previous-forgotten
        - start_us + period_us, 0, current, false
        + start_us + period_us, 0, 0, false
        retry-a-microsecond-late
        - if left > 0 then return start_us + period_us - math
        + if left > 0 then return start_us + period_us + 1 - math
        step-back-not-kept
        - if stamp_us ~= UNCHARGED or stepped_back then
        + if stamp_us ~= UNCHARGED then
        refund-into-the-wrong-window
        - if in_view and stamp_us >= start_us then
        + if in_view then
        """,
    ),
    *mutants_of(
        "algorithms/exact_window.lua",
        "tests/backends/test_script.py -k 'valkey and (packed_window or leaves)'",
        """
        comparison-flipped
        -   if over > 0 and cost > 0 then
        +   if over >= 0 and cost > 0 then
        step-back-forgotten
        - math.max(now_us + state.offset_us, state.newest_us)
        + now_us + state.offset_us
        step-back-not-kept
        - elseif t_us > now_us + state.offset_us then
        -     -- The
        + elseif false then
        +     -- The
        stamp-leaves-too-late
        - if state.oldest_us > t_us - limit.period_us then
        + if state.oldest_us >= t_us - limit.period_us then
        retry-of-the-next-stamp
        - at(key, state, limit, expired + over - 1)
        + at(key, state, limit, expired + over)
        min-interval-dropped
        - if limit.min_interval_us > 0 and
        + if false and
        min-interval-a-microsecond-short
        - newest_us + limit.min_interval_us - t_us)
        + newest_us + limit.min_interval_us - t_us - 1)
        count-denied-ignored
        - allowed or (limit.flags % 4 >= COUNT_DENIED and retry_us ~= NEVER_US)
        + allowed
        what-never-fits-is-counted
        -  and retry_us ~= NEVER_US)
        + )
        refusals-push-out-more-than-come
        - math.min(math.max(over, 0), cost)
        + math.max(over, 0)
        debt-uncapped
        - math.min(cost, 2 * limit.quota - (state.count - expired))
        + cost
        refund-of-the-next-stamp
        - first = up_to(key, state, limit, stamp_us - 1)
        + first = up_to(key, state, limit, stamp_us)
        """,
    ),
    *mutants_of(
        "algorithms/rolling_window.lua",
        "tests/backends/test_script.py -k 'valkey and rolling_window'",
        """
        ttl-dropped
        - redis.call("PEXPIRE", key, ttl_ms(limit.period_us + quantum_us))
        ttl-set-once
        - if anew or state.newest_us < t_us - t_us % quantum_us then
        + if anew then
        by tests/backends/test_script_costs.py -k valkey
        units-of-one-microsecond-are-one
        - and state.number + 1 or 0
        + and state.number or 0
        offset-dropped
        - if t_us > now_us then redis.call("ZADD", key, now_us - t_us, "o") end
        -   local
        + local
        score-not-compared
        - or newest_us ~= tonumber(newest[2])
        by tests/backends/test_script_states.py -k 'valkey and rolling_window'
        offset-taken-for-a-stamp
        - key, state.ahead, state.ahead + drop - 1)
        + key, 0, drop - 1)
        asking-writes
        - if asking then
        + if false then
        by tests/backends/test_script.py -k 'valkey and several_checks'
        """,
    ),
    *mutants_of(
        "algorithms/packed_window.lua",
        "tests/backends/test_script.py -k 'valkey and (packed_window or ring)'",
        r"""
        asking-writes
        - if asking then
        + if false then
        by tests/backends/test_script.py -k 'valkey and several_checks'
        ring-does-not-wrap
        - local first = (state.start + index) % state.capacity
        + local first = state.start + index
        ring-wraps-a-byte-late
        - string.sub(stamps, room + 1))
        + string.sub(stamps, room + 2))
        wrapped-stamp-left-behind
        - if wrapped > 0 then
        + if wrapped > 1 then
        place-too-narrow
        - if period_us < 4294967296 then
        + if period_us < 1099511627776 then
        growing-loses-the-ttl
        - if due or grown then
        + if due then
        ttl-set-once
        - if due or grown then
        + if kept == 0 or grown then
        by tests/backends/test_script_costs.py -k valkey
        offset-forgotten
        - local count, offset_us = kept + units, t_us - now_us
        + local count, offset_us = kept + units, 0
        cut-forgets-where-it-starts
        -     start = (start + units) % capacity
        cut-keeps-the-newest
        - first == count and at(key, state, limit, count - 1) or state.newest_us
        + state.newest_us
        halving-is-one-off
        - if at(key, state, limit, middle) <= t_us then
        + if at(key, state, limit, middle) < t_us then
        memory-doubled
        - if bytes < DOUBLED_BYTES then redis.call("BITOP", "OR", key, key) end
        by tests/backends/test_script_costs.py -k valkey
        ring-of-another-length
        - if bytes ~= HEADER_BYTES + capacity * place_of(limit) or
        + if
        by tests/backends/test_script_states.py -k 'valkey and packed_window'
        """,
    ),
    *mutants_of(
        "algorithms/token_bucket.lua",
        "tests/backends/test_script.py -k 'valkey and (bucket or tiny)'",
        """
        remainder-ignored
        - if after_rem > fill_rem then over_us = over_us + 1 end
        step-back-refills
        - if stepped_back then t_us = newest_us end
        step-back-not-kept
        - elseif stepped_back then
        -     save_step(key, kept, now_us)
        new-quota-forgives
        - if written == quota then return
        + if true then return
        far-debt-unclamped
        - math.min(whole * written + carry, FAR_US)
        + whole * written + carry
        max-delay-ignored
        - late_us = delay_us - limit.max_delay_us
        + late_us = 0
        what-is-full-never-fits
        - cost > limit.capacity and NEVER_US
        + cost >= limit.capacity and NEVER_US
        remaining-rounded-up
        - if us < free_us or (us == free_us and rem <= free_rem) then
        + if us <= free_us then
        receipt-of-a-state-that-is-no-more
        - if stamp_us > end_us or back_us < 0 or
        + if back_us < 0 or
        shift-forgotten
        - shift_us = shifted(shift_us, back_us + (back_rem > 0 and 1 or 0))
        ttl-without-shift
        - local left_us = used_us + shift_us
        + local left_us = used_us
        debt-uncapped
        - after_us, after_rem = least(after_us, after_rem, most_us, most_rem)
        """,
    ),
    *mutants_of(
        "algorithms/concurrency.lua",
        "tests/backends/test_script.py -k 'valkey and slots'",
        """
        one-too-many
        - held or count < limit.quota
        + held or count <= limit.quota
        ended-lease-is-still-held
        - local held = state.end_us > t_us
        + local held = state.end_us > 0
        late-release-frees-another
        - local t_us, count, last_us = advance(key, state, now_us)
        -   if state.end_us <= t_us then
        + local t_us, count, last_us = advance(key, state, now_us)
        +   if state.end_us == 0 then
        anybody-renews
        - local t_us, _, last_us = advance(key, state, now_us)
        -   if state.end_us <= t_us then
        + local t_us, _, last_us = advance(key, state, now_us)
        +   if false then
        ttl-dropped
        - redis.call("PEXPIRE", key, ttl_ms(last_us - t_us))
        step-back-frees
        - math.max(now_us + state.offset_us, state.newest_us)
        + now_us + state.offset_us
        ended-leases-counted
        - redis.call("ZCOUNT", key, above(t_us), "+inf")
        + redis.call("ZCOUNT", key, 0, "+inf")
        shortened-lease-stays-the-last
        - last_us = end_at(key, "-2") end
        + end
        slot-beside-others-not-taken
        - pending = {take, key, state, now_us, t_us, holder, end_us, last_us}
        by tests/backends/test_script.py -k 'valkey and several_checks'
        step-back-beside-others-forgotten
        - pending = {save_step, key, state, now_us, t_us}
        by tests/backends/test_script.py -k 'valkey and several_checks'
        stranger-taken-for-no-state
        - newest_us == 0 and redis.call("EXISTS", key) == 1 or newest_us
        + newest_us
        by tests/backends/test_script_states.py -k 'valkey and concurrency'
        ended-leases-come-back
        - if state.ended then redis.call("DEL", key) end
        by tests/backends/test_script_states.py -k 'valkey and concurrency'
        """,
    ),
    *mutants_of(
        "backends/redis/driver.lua",
        "tests/backends/test_script_requests.py -k valkey",
        """
        peek-charges
        - now_us, what, op == DECIDE))
        + now_us, what, true))
        markers-not-stepped-over
        - (op == CORRECT and 2 or 1) * count
        + count
        one-fault-is-everybodys
        - done, reply = pcall(decide_one, op,
        + done, reply = true, decide_one(op,
        pace-without-its-last-microsecond
        - max_delay_us = max_delay_us - 1,
        + max_delay_us = max_delay_us,
        by tests/backends/test_script.py -k 'valkey and leaky_bucket'
        """,
    ),
    *mutants_of(
        "backends/redis/rare.lua",
        "tests/backends/test_script.py -k 'valkey and several_checks'",
        """
        charge-on-refusal
        - elseif charge and not admitted
        + elseif charge and false
        count-denied-alone-only
        - (string.byte(reading) == 1 or limit.flags % 2 ~= ENFORCE)
        + true
        shadow-charged-on-refusal
        - (string.byte(reading) == 1 or limit.flags % 2 ~= ENFORCE)
        + string.byte(reading) == 1
        what-is-pending-forgotten
        - write[1](unpack(write, 2, 9))
        another-s-pending
        - pending = false
        + pending = pending
        shadow-has-a-say
        - if limit.flags % 2 == ENFORCE then
        + if true then
        word-not-heard
        - admitted = admitted and string.byte(reading) == 1
        trying-writes
        - asking = true
        fault-of-a-shadow
        - pcall(try, key, limit, what, charge)
        + true, try(key, limit, what, charge)
        by tests/backends/test_script_requests.py -k valkey
        asking-after-a-fault
        - local function fault(message, op, count, limit)
        -   asking = false
        + local function fault(message, op, count, limit)
        by tests/backends/test_script_requests.py -k valkey
        marker-dropped
        - if left_us > 0 then redis.call("SET", marker, "", "PX", ttl_ms(left_us)) end
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        marker-not-looked-at
        - if redis.call("EXISTS", marker) == 1 then return 0 end
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        marker-for-ever
        - marker, "", "PX", ttl_ms(left_us))
        + marker, "")
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        settled-beside-the-estimate
        - local more = actual_cost - cost
        + local more = actual_cost
        by tests/backends/test_script.py -k 'valkey and token_bucket'
        renewed-is-released
        - op == RENEW and algorithm.renew
        + op ~= RENEW and algorithm.renew
        by tests/backends/test_script.py -k 'valkey and slots'
        """,
    ),
)
