"""HTTP for those who are limited: headers, problem documents, client addresses, route templates.

Pure: text and numbers in, text and numbers out. Knows no framework, no server and no store.
"""

from limen.http.address import AddressSettings, Client, ClientAddresses
from limen.http.answer import Answer, Quota, answer_of, answer_of_verdict
from limen.http.headers import (
    HeaderStyle,
    headers,
    raw_headers,
    retry_after_s,
    valid_styles,
)
from limen.http.problem import Problem, Refusal, refusal, shedding
from limen.http.routes import Routes, normal_path

__all__ = [
    "AddressSettings",
    "Answer",
    "Client",
    "ClientAddresses",
    "HeaderStyle",
    "Problem",
    "Quota",
    "Refusal",
    "Routes",
    "answer_of",
    "answer_of_verdict",
    "headers",
    "normal_path",
    "raw_headers",
    "refusal",
    "retry_after_s",
    "shedding",
    "valid_styles",
]
