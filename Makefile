# Shortcuts, nothing more: each target is a command you could type. `make` prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
# Two processes, as most tests wait. A file stays in one, and tests/conftest.py says which go first.
TWO := --numprocesses=2 --dist=loadfile --no-loadscope-reorder
export PYTHONDONTWRITEBYTECODE = 1

.DEFAULT_GOAL := help
.PHONY: help run test quick fuzz faults bench fmt clean

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run ## Start the service at http://localhost:8080, with a few rules to try
	$(BIN)/limen serve

test: $(VENV)/test ## All that must hold: style, types, layers, every test, the examples in the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest $(TWO)

quick: $(VENV)/test ## The minute in between: style, and every test with a tenth of the examples
	$(BIN)/ruff check .
	$(BIN)/pytest $(TWO) -q --hypothesis-profile=quick

fuzz: $(VENV)/test ## The property tests again, ten times as hard
	LIMEN_FUZZ=1 $(BIN)/pytest tests/algorithms tests/rules/test_*.py tests/rules/envoy tests/server/test_fuzz.py tests/server/admin/test_fuzzed.py tests/server/grpc/test_fuzz_handler.py tests/server/grpc/test_cut.py tests/server/grpc/test_headers.py tests/server/envoy/test_answer.py --hypothesis-profile=fuzz --timeout=1800

faults: $(VENV)/test ## The faults again, at full length: servers killed, frozen, cut off, poisoned
	LIMEN_FAULTS=1 $(BIN)/pytest tests/shared tests/rules/sync tests/rules/stores tests/test_deploy.py --timeout=600

bench: $(VENV)/bench ## Measure beside the peers; writes the tables of README.md
	@command -v h2load > /dev/null || apt-get install --yes -qq nghttp2-client || echo 'no h2load: gateways will be left out'
	$(BIN)/python -m bench

fmt: $(VENV)/test ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove everything that was built or installed here
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist

# Each set of packages is installed once, and again when what it is made of changes.
$(VENV)/python: 
	@$(PYTHON) -c 'import sys; sys.exit("limen needs Python 3.11 or later, found " + sys.version.split()[0] + "; try: make PYTHON=python3.12") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/run: $(VENV)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[server]'
	@touch $@

$(VENV)/test: $(VENV)/run
	$(PIP) --editable '.[test]'
	@touch $@

$(VENV)/bench: $(VENV)/test
	$(PIP) --editable '.[bench]'
	@touch $@
