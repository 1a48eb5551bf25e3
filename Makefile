# Shortcuts, nothing more: each target is a command you could type. `make` prints them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
# Three processes for two cores, as many tests wait. A file stays in one, and tests/conftest.py says
# which go first.
BESIDE := --numprocesses=3 --dist=loadfile --no-loadscope-reorder
export PYTHONDONTWRITEBYTECODE = 1
# Tests start hundreds of processes. Each would compile limen anew: they keep bytecode, away from the tree.
PYTEST := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/$(VENV)/bytecode $(BIN)/pytest

.DEFAULT_GOAL := help
.PHONY: help run test test-all quick fuzz faults mutants bench screenshots fmt clean

help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/run ## Start the service at http://localhost:8080, with starter rules; dashboard at http://localhost:8082
	$(BIN)/limen serve

test: $(VENV)/test $(VENV)/prometheus $(VENV)/chromium ## All that must hold: style, types, layers, tests, the examples in the docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(PYTEST) $(BESIDE) $(PYTEST_FLAGS)

test-all: $(VENV)/test $(VENV)/prometheus $(VENV)/chromium ## The same, and the tests that take longest (marked `slow`)
	$(MAKE) --no-print-directory PYTEST_FLAGS='-m "" --timeout=600 --hypothesis-profile=all' test

quick: $(VENV)/test ## The minute in between: style, and every test with a tenth of the examples
	$(BIN)/ruff check .
	$(PYTEST) $(BESIDE) -q --hypothesis-profile=quick

fuzz: $(VENV)/test ## The property tests again, ten times as hard
	LIMEN_FUZZ=1 $(PYTEST) tests/algorithms tests/backends/test_script.py tests/rules/test_*.py tests/rules/envoy tests/server/test_fuzz.py tests/server/admin/test_fuzzed.py tests/server/grpc/test_fuzz_handler.py tests/server/grpc/test_cut.py tests/server/grpc/test_headers.py tests/server/envoy/test_answer.py tests/gateways/test_fuzz.py --hypothesis-profile=fuzz --timeout=1800

faults: $(VENV)/test ## The faults again, at full length (an hour): prints what each let through
	LIMEN_FAULTS=1 $(PYTEST) tests/faults tests/shared tests/rules/sync tests/rules/stores tests/test_deploy.py tests/dashboard/test_large.py tests/server/insight/test_fleet.py -m "" --timeout=1200

mutants: $(VENV)/test ## Break the decisions in two hundred ways (8 minutes), and see that the tests notice each
	$(BIN)/python -m tests.mutants

bench: $(VENV)/bench ## Measure beside the peers; writes the tables of README.md
	@command -v h2load || { echo 'apt-get install nghttp2-client: for h2load, on this system'; $(call apt,install --yes nghttp2-client); } || echo 'no h2load: gateways will be left out'
	$(BIN)/python -m bench

screenshots: $(VENV)/test $(VENV)/chromium ## Take a picture of each page of the dashboard: light and dark, wide and phone
	$(BIN)/python -m tests.dashboard.screenshots screenshots

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

# The lists of packages may be old or empty: then a second try, with new ones. Nothing that apt-get says is hidden.
apt = { apt-get -q $(1) || { echo "apt-get $(1) failed; trying again after apt-get update" && apt-get -q update && apt-get -q $(1); }; }

# A real Prometheus for the tests, from the system's package: unpacked here, and not installed.
$(VENV)/prometheus: | $(VENV)/test
	@echo 'apt-get download prometheus: for the tests, unpacked into $(VENV)/opt and not installed'
	@mkdir -p $(VENV)/opt/download && cd $(VENV)/opt/download && \
	$(call apt,download prometheus) && dpkg-deb -x prometheus_*.deb ../prometheus && touch ../../prometheus || \
	echo 'no Prometheus: apt-get could not download it, see above; without one on the PATH, tests that need it are skipped, and fail in CI'
	@rm -rf $(VENV)/opt/download

# A real Chromium for the tests of the dashboard: the system's package, if it may be installed.
CHROMIUM := install --yes --no-install-recommends chromium fonts-dejavu-core
$(VENV)/chromium: export DEBIAN_FRONTEND = noninteractive
$(VENV)/chromium: | $(VENV)/test
	@if ! command -v chromium; then echo 'apt-get $(CHROMIUM): for the tests, on this system'; $(call apt,$(CHROMIUM)); fi \
	< /dev/null && touch $@ || \
	echo 'no Chromium: apt-get could not install it, see above; tests that need it are skipped, and fail in CI'

$(VENV)/bench: $(VENV)/test
	$(PIP) --editable '.[bench]'
	@touch $@
