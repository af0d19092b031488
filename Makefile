# Two commands are all a fresh machine needs: `make demo` and `make test`. They need python3 (3.11 or newer, with venv).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# How many processes run the tests: "auto" is some more than processors (tests/conftest.py). Set JOBS=0 to run them in
# one process, for a debugger.
JOBS ?= auto
# Compiled modules are kept whatever the surroundings say: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=
# What uv is told for other projects isn't meant for this one.
unexport $(filter UV_%,$(.VARIABLES))
# How many processes `make crash` kills.
KILLS ?= 1000
# How often each program runs in the benchmarks, and which rows; all by default (python -m benchmarks --list names them).
ROUNDS ?= 5
ROWS ?=
# Packages that are imported and checked for Windows.
ON_WINDOWS := platforms oci config registry resources errors
# The generators of gRPC code live apart: they are the oldest that will do, the rest is new.
PROTOS := .venv-protos

.PHONY: help demo demo-node demo-growth docs deb reference test check unit lint types types-elsewhere format integration crash growth bench protos protos-check lock clean

help:
	@echo "make demo         one reference, two runtime handlers, two manifests; recorded, so no registry is asked. Like all of"
	@echo "                  these it first installs what it needs from a package index (python3 -m pip config list says which)"
	@echo "make demo-node    one reference, two pods that run different programs, in Debian's containerd; needs root"
	@echo "make demo-growth  two mirror replicas, five nodes, one registry; says how many bytes are saved"
	@echo "make docs         the documentation site, into build/site; a dead link or an unresolved name is an error"
	@echo "make deb          the Debian package, into dist (SOURCE_DATE_EPOCH=... for the same bytes each time)"
	@echo "make reference    make the schemas, tables and pictures anew that come from the code"
	@echo "make test         lint, types, floors, unit and property tests"
	@echo "make check        one package and its tests: make check ROOM=store"
	@echo "make integration  the same against real servers on loopback (installs Debian packages that are missing)"
	@echo "make crash        kill processes at work on one store, and on a shared one with its database and gateway"
	@echo "                  (KILLS=1000 of them), and judge what is left"
	@echo "make growth       the mirror and its bucket with real clients, KILLS of it, and its figures"
	@echo "make bench        measure beside Debian's programs; writes benchmarks/RESULTS.md (ROUNDS=5; ROWS=\"S M\" only prints)"
	@echo "make format       let ruff put the code in shape"
	@echo "make protos       generate the gRPC code anew from the .proto files (protos-check: is it what they give?)"
	@echo "make lock         make the two requirements locks anew from pyproject.toml and requirements-protos.in"

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "imagestore needs Python 3.11 or newer; say which with PYTHON=...")'
	@echo 'Installing what requirements.lock names from the package index that pip is set up for.'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

demo-node: $(VENV)/ready
	$(BIN)/python examples/node_demo.py

demo-growth: $(VENV)/ready
	$(BIN)/python examples/growth_demo.py

# Without --quiet, which hides warnings from --strict too.
docs: $(VENV)/ready
	$(BIN)/python -m docs._tools.site_pages
	$(BIN)/mkdocs build --strict

deb: $(VENV)/ready
	$(BIN)/python packaging/deb/build.py

reference: $(VENV)/ready
	$(BIN)/python -m docs._tools

lint: $(VENV)/ready
	$(BIN)/ruff check imagestore tests benchmarks examples fixtures docs packaging hatch_build.py
	$(BIN)/ruff format --check imagestore tests benchmarks examples fixtures docs packaging hatch_build.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.inner_imports

types: $(VENV)/ready
	$(BIN)/mypy

# By the rules of other systems and Pythons; slower, so `make integration` runs it.
types-elsewhere: $(VENV)/ready
# The package runs on macOS, whose Python lacks some of Linux's names.
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin imagestore
# What needs no store runs on Windows too (tests/unit/util/test_windows.py).
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 $(addprefix -p imagestore.,$(ON_WINDOWS))
# Newer Pythons, by their standard library's types.
	for version in 3.12 3.13 3.14; do \
	  $(BIN)/mypy --python-version $$version --cache-dir .mypy_cache/$$version imagestore || exit 1; \
	done

# Side by side, since the type checker uses one processor only.
test: $(VENV)/ready
	@$(MAKE) --no-print-directory -j 3 lint types unit

# One package and its tests, while one works on it.
check: $(VENV)/ready
	@test -n "$(ROOM)" || { echo "say which package: make check ROOM=store"; exit 2; }
	$(BIN)/ruff check imagestore/$(ROOM) tests/unit/$(ROOM)
	$(BIN)/ruff format --check imagestore/$(ROOM) tests/unit/$(ROOM)
	$(BIN)/lint-imports
	$(BIN)/mypy imagestore/$(ROOM) tests/unit/$(ROOM)
	$(BIN)/pytest -q -n $(JOBS) tests/unit/$(ROOM) tests/unit/test_house.py tests/unit/test_docstrings.py

unit: $(VENV)/ready $(VENV)/collected
	$(BIN)/pytest -n $(JOBS) --dist worksteal

# Once, by one process: else each of those that share the tests compiles all of them. What is wrong with them it says later.
$(VENV)/collected: | $(VENV)/ready
	@$(BIN)/pytest -n 0 --collect-only --quiet > /dev/null || true
	@touch $@

integration: $(VENV)/ready protos-check types-elsewhere
	tests/integration/install-peers
# By their folder: whoever forgets the mark is run too.
	$(BIN)/pytest tests/integration
	$(BIN)/pytest tests/property -n $(JOBS) --hypothesis-profile=thorough
# Once more without what Python lacks on macOS.
	$(BIN)/pytest -p tests.support.macos_names -n $(JOBS) tests/unit/store tests/unit/content

crash: $(VENV)/ready
	$(BIN)/python -m tests.crash --kills $(KILLS)
	tests/integration/install-peers
	$(BIN)/python -m tests.crash.shared --kills $(KILLS)
	$(BIN)/python -m tests.crash.shared --kills $(KILLS) --restarts 20

$(PROTOS)/ready: requirements-protos.lock
	$(PYTHON) -m venv $(PROTOS)
	$(PROTOS)/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r requirements-protos.lock
	@touch $@

protos: $(PROTOS)/ready
	.ci/protos $(PROTOS)/bin/python

protos-check: $(PROTOS)/ready
	.ci/protos $(PROTOS)/bin/python --check

growth: $(VENV)/ready
	tests/integration/install-peers
	MIRROR_KILLS=$(KILLS) $(BIN)/pytest tests/integration/test_mirror.py tests/integration/test_bucket.py tests/integration/test_shared_*.py
	$(BIN)/python -m tests.crash.shared --kills $(KILLS) --restarts 10
	$(BIN)/python -m benchmarks --rounds $(ROUNDS) --rows MIRROR NODES SHARED

bench: $(VENV)/ready
	tests/integration/install-peers
	$(BIN)/python -m benchmarks --rounds $(ROUNDS) $(if $(ROWS),--rows $(ROWS),--output benchmarks)

format: $(VENV)/ready
	$(BIN)/ruff check --fix imagestore tests benchmarks examples fixtures docs packaging
	$(BIN)/ruff format imagestore tests benchmarks examples fixtures docs packaging

lock: $(VENV)/ready
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --all-extras \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --no-annotate requirements-protos.in -o requirements-protos.lock

clean:
	rm -rf $(VENV) $(PROTOS) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
