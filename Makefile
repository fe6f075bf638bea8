# Commands for a fresh clone: make demo | test | lint | corpus | format | clean
#   PYTHON=/path/to/python3   use that interpreter (>= 3.12) instead of the newest one found
#   JAX=0.11.2                use that version of JAX, in an environment of its own
#   ARGS='-k graph'           further arguments for pytest or the corpus

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JAX ?=
PYTHON ?=
ARGS ?=
VENV := .venv$(if $(JAX),-$(JAX))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORPUS_STAMP := $(VENV)/.installed-corpus
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# A shim of a version manager can be on PATH and still not run, so each is tried.
USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))
FIND_PYTHON = \
  pyenv="$${PYENV_ROOT:-$$HOME/.pyenv}/versions"; \
  for python in $(if $(PYTHON),'$(PYTHON)',python3.14 "$$pyenv"/3.14.*/bin/python3 \
      python3.13 "$$pyenv"/3.13.*/bin/python3 python3.12 "$$pyenv"/3.12.*/bin/python3 python3); do \
    if "$$python" -c '$(USABLE)' >/dev/null 2>&1; then found=$$python; break; fi; \
  done

TRIED := $(if $(PYTHON),$(PYTHON),python3.14 python3.13 python3.12 python3 and pyenv)

.PHONY: help demo test lint corpus format clean reinstall

help:
	@sed -n '1,4s/^# \{0,1\}//p' Makefile

# The chip is named so that the demo is the same on a machine that has another one.
BEFORE := dumps/matmul_tpu/matmul.mosaic_tpu.v5e
AFTER := build/matmul_single_buffered.mlir
demo: $(STAMP)
	$(BIN)/mosaic-dump dumps/kernels/matmul_tpu.py --target v5e --overwrite
	$(BIN)/mosaic-dump apply $(BEFORE) -p 'pipeline-depth{stages=1},canonicalize' -o $(AFTER)
	$(BIN)/mosaic-dump diff $(BEFORE) $(AFTER) || test $$? -eq 1

test: $(STAMP)
	$(BIN)/python -m pytest -n auto --maxprocesses=4 -m 'not corpus' $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

corpus: $(CORPUS_STAMP)
	$(BIN)/python -m tests.corpus $(ARGS)

clean:
	rm -rf .venv .venv-* build dist .pytest_cache .ruff_cache .hypothesis

# Naming another interpreter than the environment's makes the environment anew.
ifneq ($(PYTHON),)
ifneq ($(PYTHON),$(shell cat $(STAMP) 2>/dev/null))
$(STAMP): reinstall
endif
endif

# The stamp is written last: an environment without one is not trusted but made anew.
$(STAMP): pyproject.toml
	@rm -f $@; $(FIND_PYTHON); \
	if test -z "$$found"; then \
	  echo 'error: found no usable Python >= 3.12 (tried: $(TRIED))' >&2; \
	  echo >&2; \
	  echo 'hint: install one with its venv module, for example with' >&2; \
	  echo '        apt install python3.12-venv | dnf install python3.12 | brew install python@3.13 | pyenv install 3.13' >&2; \
	  echo '      or name one: make PYTHON=/path/to/python3' >&2; \
	  exit 1; \
	fi; \
	set -e; \
	echo "Making $(VENV) with $$("$$found" --version) ($$found) and JAX $(or $(JAX),of the newest supported version)"; \
	"$$found" -m venv --clear $(VENV); \
	$(PIP) 'pip>=25.1'; \
	$(PIP) --editable . --group dev $(if $(JAX),jax==$(JAX) jaxlib==$(JAX)); \
	echo "$$found" >$@

$(CORPUS_STAMP): $(STAMP)
	@echo 'Installing the kernel libraries and compilers of the corpus'
	@$(PIP) --editable '.[tpu,gpu]' --group corpus $(if $(JAX),jax==$(JAX) jaxlib==$(JAX))
	@touch $@
