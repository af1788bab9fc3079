# Everything here needs Python 3.11 or newer, make and a package index; the rest is put into .venv, from the lock.
PYTHON ?= python3
ARGS ?=
# How many processes share the tests, which wait for programs as much as they compute. 0 is none but pytest itself.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
UV := .venv-lock/bin/uv
UV_VERSION := 0.13.9
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Otherwise pyright asks the network whether there is a newer one than the lock names.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: help demo test lint bench soak lock clean python

help:
	@echo 'make demo    watch a claim being won, refused and taken over'
	@echo 'make test    run the tests in WORKERS processes (2); ARGS is passed to pytest'
	@echo 'make lint    check style, types and the direction of imports'
	@echo 'make bench   measure start-up, status, writes and races; not part of the tests'
	@echo 'make lock    renew requirements/*.txt'
	@echo 'make clean   remove all that the targets above have made'

demo: $(RUN)
	@$(BIN)/agent-coord demo

test: $(DEV)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(ARGS)

lint: $(DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/pyright --pythonplatform Darwin src
	@$(BIN)/lint-imports --no-logo

bench: $(DEV)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/client.py
	$(BIN)/python bench/status_scan.py
	$(BIN)/python bench/status.py
	$(BIN)/python bench/trail.py
	$(BIN)/python bench/durable_write.py
	$(BIN)/python bench/claims_race.py
	$(BIN)/python bench/claims_race.py --kill
	$(BIN)/python bench/lanes.py
	$(BIN)/python bench/server.py
	$(BIN)/python bench/server_memory.py
	$(BIN)/python bench/daemon_socket.py

# Half an hour; not among the others.
soak: $(DEV)
	$(BIN)/python bench/soak.py

# The lock names every package by version and hash, for every Python and system the project runs on.
COMPILE := $(UV) pip compile --quiet --no-config --upgrade --universal --python-version 3.11 --generate-hashes \
	--custom-compile-command 'make lock'

lock: $(UV)
	$(COMPILE) requirements/pip.in --output-file requirements/pip.txt
	$(COMPILE) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(COMPILE) pyproject.toml --group build --constraint requirements/dev.txt --output-file requirements/run.txt
	$(COMPILE) pyproject.toml --extra server --extra postgres --group build --constraint requirements/dev.txt \
		--output-file requirements/server.txt

clean:
	rm -rf $(VENV) .venv-lock .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

# What the demo needs: the project, editable, and its own dependencies. Pip comes first: the console scripts written by
# the one that ships with Python 3.11 import `re`, which is half of an interpreter's start-up again.
$(RUN): requirements/pip.txt requirements/run.txt pyproject.toml src/agentcoord/version.py | python
	@echo 'preparing $(VENV)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP_INSTALL) --require-hashes -r requirements/pip.txt
	@$(PIP_INSTALL) --require-hashes -r requirements/run.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): requirements/dev.txt $(RUN)
	@echo 'adding the development tools'
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

$(UV): Makefile | python
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@touch $@

python:
	@command -v $(PYTHON) >/dev/null 2>&1 || \
		{ echo 'agent-coord needs Python 3.11 or newer; $(PYTHON) was not found' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "agent-coord needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo 'agent-coord needs the venv module of $(PYTHON) (on Debian: apt-get install python3-venv)' >&2; exit 1; }
