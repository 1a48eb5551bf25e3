"""Envoy's rate limit service, version 3: what envoyproxy/ratelimit answers, by the rules of limen.

`schema` has the messages, `question` parses requests, `answer` encodes responses, and `service`
does both around one decision.
"""
