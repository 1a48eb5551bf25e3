"""The rules of envoyproxy/ratelimit: how its descriptors and its files become limen's.

`attributes_of` is the one place that says what a descriptor looks like to rules. The import writes
rules for it, and whoever serves Envoy calls it for every descriptor of a request.
"""

from limen.rules.envoy.config import Remark
from limen.rules.envoy.descriptor import DOMAIN, attributes_of, value_of
from limen.rules.envoy.translate import Imported, import_files

__all__ = ["DOMAIN", "Imported", "Remark", "attributes_of", "import_files", "value_of"]
