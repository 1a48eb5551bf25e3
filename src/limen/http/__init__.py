"""HTTP for those who are limited: headers, refusals, client addresses, route templates.

Pure: text and numbers in, text and numbers out. Knows no framework, no server and no store.
"""

from limen.http.address import (
    OPTIONAL_WHITESPACE,
    AddressSettings,
    Client,
    ClientAddresses,
    ProxyHeader,
)
from limen.http.answer import COUNTED, Answer, Quota, answer_of, answer_of_verdict, title_of
from limen.http.headers import (
    Outcome,
    Policies,
    headers,
    policies,
    raw_headers,
    retry_after_s,
)
from limen.http.paths import is_ambiguous, normal_path
from limen.http.problem import Problem, Refusal, refusal, shedding, status_of
from limen.http.routes import Routes
from limen.http.styles import HeaderStyle, exposed_headers, valid_styles

__all__ = [
    "COUNTED",
    "OPTIONAL_WHITESPACE",
    "AddressSettings",
    "Answer",
    "Client",
    "ClientAddresses",
    "HeaderStyle",
    "Outcome",
    "Policies",
    "Problem",
    "ProxyHeader",
    "Quota",
    "Refusal",
    "Routes",
    "answer_of",
    "answer_of_verdict",
    "exposed_headers",
    "headers",
    "is_ambiguous",
    "normal_path",
    "policies",
    "raw_headers",
    "refusal",
    "retry_after_s",
    "shedding",
    "status_of",
    "title_of",
    "valid_styles",
]
