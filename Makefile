# make demo: the whole pipeline on generated motion; make test: checks and tests. Either sets up
# .venv first, which needs nothing but make and a Python in range. PYTHON=... chooses one;
# EXTRAS=... adds optional parts, e.g. `make install EXTRAS=dev` leaves out what mp4 films need.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

IN_RANGE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(or $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
  $(shell $(name) -c '$(IN_RANGE)' 2>/dev/null && echo $(name)))),python3)
EXTRAS ?= dev,menagerie,wandb,ray,deploy,unitree,render,rerun,lerobot,ros,warp,hub,docs
PIP_ARGS ?=
WORKERS ?= 2

# Tests whose numbers the processor decides: torch and its oneDNN sum in another order with other
# vector instructions.
CAPABILITY ?= default
ONEDNN_ISA := $(if $(filter avx512,$(CAPABILITY)),DEFAULT,AVX2)
NUMERIC := tests/core tests/envs tests/tasks tests/skills tests/evaluation tests/learning

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
  --constraint constraints.txt

NOT_HERE := install Python 3.11 to 3.13 or name one: make PYTHON=python3.12

PORT ?= 8080

.PHONY: help install demo play pictures test test-quick test-all test-portable docs lint format \
  clean

help:
	@echo "make demo     the whole pipeline on generated motion: runs/demo/report.html" \
	  "(about 4 minutes on two cores)"
	@echo "make play     steer a robot in the browser: http://127.0.0.1:8080," \
	  "PORT=... for another port"
	@echo "make test     lint, types and the quick tests (about 5 minutes)"
	@echo "make test-all  these and the slow ones: Ray, killed runs, Chromium," \
	  "the commands of the documentation"
	@echo "make test-portable  the tests of numbers as another processor computes them:" \
	  "CAPABILITY=default|avx2|avx512"
	@echo "make pictures the pictures of the README: docs/pictures (some minutes)"
	@echo "make docs     the documentation as a site: site/index.html"
	@echo "make install  only set up .venv"
	@echo "make lint     only lint and types"
	@echo "make format   let ruff format the code, sort imports and fix what it can"
	@echo "make clean    remove caches (not .venv, not runs/)"

install: $(STAMP)

# Extras named on the command line are installed even where the stamp is up to date.
ifeq ($(origin EXTRAS),command line)
$(STAMP): FORCE
endif
FORCE:

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON) here; $(NOT_HERE)" >&2; exit 1; }
	@$(PYTHON) -c '$(IN_RANGE)' || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); npmp needs 3.11 to 3.13; $(NOT_HERE)" >&2; \
	  exit 1; }
	@if [ -x $(BIN)/python ] && ! $(BIN)/python -c '$(IN_RANGE)' 2>/dev/null; then \
	  echo "make: $(VENV) holds another Python or is broken;" \
	    "remove it and try again: rm -r $(VENV)" >&2; exit 1; fi
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "creating $(VENV) with $$($(PYTHON) -V)"; \
	  $(PYTHON) -m venv $(VENV) || { \
	    echo "make: $(PYTHON) cannot make a virtual environment;" \
	      "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	fi
	@echo "installing into $(VENV) (some minutes the first time)"
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $(STAMP)

pictures: $(STAMP)
	$(BIN)/npmp retarget out=runs/pictures/motions.h5 report=false
	$(BIN)/npmp render story=docs/pictures/story.txt fps=12.5 max_mb=2.4 out=docs/pictures/npmp.webp
	$(BIN)/npmp render story=docs/pictures/parkour.txt fps=10 size=[320,240] max_mb=1 \
	  caption=false out=docs/pictures/parkour.webp

demo: $(STAMP)
	$(BIN)/npmp demo out=runs/demo

# Where nothing is installed yet: what this needs and no more. Without the stamp the next target
# installs the rest.
play:
	@$(BIN)/python -c 'import npmp, viser' 2>/dev/null || { \
	  $(MAKE) --no-print-directory install EXTRAS= && rm $(STAMP); }
	$(BIN)/npmp play port=$(PORT)

# Both at once: mypy takes half a minute of one core.
test: $(STAMP)
	@$(MAKE) --no-print-directory --jobs=2 lint test-quick

test-quick: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal \
	  -m "not slow and not browser and not commands"

# All that must hold before a change goes in, as .ci/run asks for it.
test-all: lint docs test-portable
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not browser and not commands"
	$(BIN)/python -m pytest -m browser
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope -rs -m commands tests/test_docs_commands.py

test-portable: $(STAMP)
	ATEN_CPU_CAPABILITY=$(CAPABILITY) ONEDNN_MAX_CPU_ISA=$(ONEDNN_ISA) $(BIN)/python -m pytest \
	  -n $(WORKERS) --dist worksteal -m "not slow and not commands" $(NUMERIC)

# Nothing is fetched; a broken link or anchor ends it (--quiet would not count warnings). Searching
# the pages needs a server:
# python -m http.server -d site
docs: $(STAMP)
	@$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || { \
	  echo "make: the documentation needs more packages: make install EXTRAS=docs" >&2; exit 1; }
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build site *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
