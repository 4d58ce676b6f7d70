# Everything a person or a machine does with this repository. `make help` lists it.
#
# `make run` and `make test` need python3 >= 3.11, make and a network to the package registries. The environment
# is .venv; stamp files inside it say which lock file it was filled from, so the second time is quick.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Three pytest processes: the suites wait for sockets and timers more than they compute, so that two leave a small
# machine half idle; whole servers with their workers fill it with more. loadgroup keeps tests that share a group
# (conftest.py puts each e2e file into one) in one process and in order, so that a file starts its server once and
# files do not fight.
PYTEST_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest
# A process that dies is not replaced: xdist would give its group to the next one, which dies the same way.
PARALLEL := -n $(PYTEST_WORKERS) --dist loadgroup --max-worker-restart=0
# Pieces that may be missing from this machine: `make test SKIP=firefox,node`.
SKIP ?=
export SKIP
# pyright comes complete inside its wheel; it need not ask whether there is a newer one.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
# Some containers forbid Python to keep its bytecode. The tests start hundreds of processes, and each would compile
# all that it imports again: half of its start.
unexport PYTHONDONTWRITEBYTECODE
UV := $(BIN)/uv
# What builds the documentation site stays out of the environment of the tests.
SITE := $(VENV)/site
UV_INSTALL := $(UV) pip install --quiet --python $(BIN)/python
UV_COMPILE := $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"

.DEFAULT_GOAL := help
.PHONY: help run test check release-test lint format types contracts bench soak docs site protos lock changelog hooks clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/base.stamp ## Run the platform on the embedded store; ARGS="--port-base 9000" reaches `waystation serve`
	@exec $(BIN)/waystation serve $(ARGS)

test: $(VENV)/dev.stamp ## Test everything, and bring what the tests need; SKIP=firefox,node names what may be missing
	@$(BIN)/python tools/prepare_tests.py
	@$(MAKE) --no-print-directory lint types contracts
	$(PYTEST) $(PARALLEL) $(ARGS)

check: $(VENV)/dev.stamp ## Test what needs no services: lint, types, layers, unit, property, a few simulated worlds
	@$(MAKE) --no-print-directory lint types contracts
	$(PYTEST) $(PARALLEL) -m "not soak and not e2e and not firefox and not node and not dynamodb and not postgres and not redis and not bigtable and not kafka and not spark" --ignore=tests/e2e --ignore=tests/faults $(ARGS)

release-test: $(VENV)/dev.stamp ## Test what is too slow or heavy for `make test`: the site, and the newest Python that is here
	@$(MAKE) --no-print-directory site
	@tools/newest_python

lint: $(VENV)/dev.stamp ## Lint and check the format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/dev.stamp ## Format, and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/dev.stamp ## Check types (strict on src)
	$(BIN)/pyright

contracts: $(VENV)/dev.stamp ## Check that imports point down
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/dev.stamp ## Measure; ARGS goes to `python -m benchmarks`
	@exec $(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/dev.stamp ## Run the long tests (kills, seeds, hours)
	@$(BIN)/python tools/prepare_tests.py
	WAYSTATION_SOAK=1 $(PYTEST) -m soak -o faulthandler_timeout=7200 $(ARGS)

docs: $(VENV)/dev.stamp ## Write the generated pages of docs/, and the site into build/site
	$(BIN)/python tools/scenario_table.py
	$(BIN)/python tools/reference.py
	$(BIN)/python tools/figures.py
	@$(MAKE) --no-print-directory site

site: $(VENV)/site.stamp ## Build the documentation site into build/site; fails on dead links and orphan pages
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet

protos: $(VENV)/dev.stamp ## Write the Python code of the .proto files
	$(BIN)/python tools/protos.py

lock: $(VENV)/tools.stamp ## Raise requirements/*.lock to the newest versions that fit pyproject.toml
	$(UV_COMPILE) requirements/tools.in -o requirements/tools.lock
	$(UV_COMPILE) -c requirements/tools.lock pyproject.toml -o requirements/base.lock
	$(UV_COMPILE) requirements/docs.in -o requirements/docs.lock
	$(UV_COMPILE) -c requirements/tools.lock -c requirements/base.lock pyproject.toml --all-extras --group dev -o requirements/dev.lock
	$(BIN)/python tools/lock_senders.py

changelog: ## Move the fragments of changes/ into CHANGELOG.md; VERSION=1.2.3
	@$(PYTHON) tools/changelog.py "$(VERSION)"

hooks: ## Check lint, import rules and the commit message at each commit of this clone
	@hooks="$$(git rev-parse --git-path hooks)" && mkdir -p "$$hooks" && \
	printf '#!/bin/sh\nexec make --no-print-directory lint contracts\n' > "$$hooks/pre-commit" && \
	printf '#!/bin/sh\nexec tools/commit_message "$$1"\n' > "$$hooks/commit-msg" && \
	chmod +x "$$hooks/pre-commit" "$$hooks/commit-msg"
	@echo "lint, import rules and the form of the message are checked at each commit"

clean: ## Remove the environment and everything tools left behind
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache tests/e2e/senders/node_modules tests/servers/npm/node_modules examples/party_in_node/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment -------------------------------------------------------------------------------------------

$(VENV)/tools.stamp: requirements/tools.lock tools/make_venv
	@tools/make_venv $(PYTHON) $(VENV)
	@touch $@

$(VENV)/site.stamp: $(VENV)/tools.stamp requirements/docs.lock
	@echo "Installing what builds the site into $(SITE)"
	@$(UV) venv --quiet --clear --python $(BIN)/python $(SITE)
	@$(UV) pip install --quiet --python $(SITE)/bin/python --require-hashes -r requirements/docs.lock
	@touch $@

$(VENV)/base.stamp: $(VENV)/tools.stamp requirements/base.lock pyproject.toml
	@echo "Installing what Waystation needs into $(VENV)"
	@$(UV_INSTALL) --require-hashes -r requirements/base.lock
	@$(UV_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/base.stamp requirements/dev.lock
	@echo "Installing what its tests need into $(VENV)"
	@$(UV_INSTALL) --require-hashes --build-constraints requirements/tools.lock -r requirements/dev.lock
	@touch $@
