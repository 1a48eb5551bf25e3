"""Leaky bucket: requests leave at an even pace; who comes early is told how long to wait.

Bound: in any time W, the requests that start (when they came, plus their `delay`) are at most
W · quota / period units and one request.

The state and its arithmetic are the token bucket's: what is used there is the queue here. The
difference is the answer. A token bucket lets a burst through at once; a leaky bucket lets it in and
gives each its turn, which is when everything before it has drained. What would not fit into the
bucket, or would have to wait longer than `max_delay`, is refused.

When the quota changes, what is used stays used, as everywhere; but who was told to wait keeps the
turn it was given, so just after a change two paces may overlap.
"""

from __future__ import annotations

from limen.algorithms.token_bucket import TokenBucketState


class LeakyBucketState(TokenBucketState, gc=False):
    """What is kept for one key: a bucket whose limit has a `max_delay_us`, so its users wait."""
