# `make demo` and `make test` work from a fresh clone with Python 3.11 to 3.13, make and a package index, and without
# network once installed. Where PyTorch for CUDA, the default on Linux, is too large: make install TORCH=cpu

# Candidates, the first that fits is taken; `make PYTHON=/path/to/python3.12 demo` takes that one.
PYTHON ?= python3 python3.13 python3.12 python3.11
# Which PyTorch is installed: as pip chooses, or `cpu`.
TORCH ?=
STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev
# Recipes and what they start find the virtual environment first.
RUN = PATH="$$PWD/.venv/bin:$$PATH"
# Threads are not multiplied by processes, and nothing asks a hub or reports to MLflow's makers.
TEST = $(RUN) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 MLFLOW_DISABLE_TELEMETRY=true

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo test test-gpu lint schema clean-venv

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(STAMP)  ## Create .venv and install what studies need, with pinned versions

install-dev: $(DEV_STAMP)  ## Install what tests and lint need, too

# With --force the table is printed at the end also where nothing was left to do.
demo: $(STAMP)  ## Run the demo study: minutes on 2 CPU cores, nothing from outside
	$(RUN) snakemake --cores all --force

test: $(DEV_STAMP)  ## Run the tests: minutes on 2 cores
	$(TEST) python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder

test-gpu: $(DEV_STAMP)  ## Run the tests of a GPU
	$(TEST) python -m pytest tests/gpu

lint: $(DEV_STAMP)  ## Check style, types and Snakemake files
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) snakefmt --check Snakefile rules

schema: $(STAMP)  ## Write the JSON schema of a study anew, after a change of settings
	$(RUN) python -m coupled_adam_bench.study.schema > workflow/schemas/study.schema.json

clean-venv:  ## Delete .venv
	rm -rf .venv

virtual_environment = [ -x .venv/bin/python ] || { \
  for python in $(PYTHON); do \
    "$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
      && exec "$$python" -m venv .venv; \
  done; \
  echo "No Python 3.11 to 3.13 with the module ensurepip among: $(PYTHON)." >&2; \
  echo "Install one (Debian, Ubuntu: python3 and python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
  exit 1; \
}

# What pip says goes to a log. Of it we show what is large, as it comes, and the end if pip fails.
INSTALL_LOG := .venv/install.log
FAILED := .venv/.failed
INDEX_OF_TORCH := $(if $(filter cpu,$(TORCH)),--extra-index-url https://download.pytorch.org/whl/cpu)
install = rm -f $(FAILED); { .venv/bin/python -m pip install $(INDEX_OF_TORCH) -c constraints.txt $(1) 2>&1 || touch $(FAILED); } \
  | tee -a $(INSTALL_LOG) | grep --line-buffered -oE '(Downloading|Using cached) .*[MG]B\)$$|^Installing collected packages'; \
  [ ! -e $(FAILED) ] || { tail -n 20 $(INSTALL_LOG); exit 1; }

# The stamps make a second call quick and independent of the network.
$(STAMP): pyproject.toml packages/coupled-adam/pyproject.toml constraints.txt
	@$(virtual_environment)
	@echo "Installing PyTorch, transformers, lm-eval, MLflow, Snakemake and what they need into .venv: 5.4 GB with"
	@echo "PyTorch for CUDA, which pip takes on Linux, or 2.2 GB with \`make install TORCH=cpu\`. It takes some minutes."
	@echo "All that pip says is in $(INSTALL_LOG)."
	@$(call install,setuptools)
	@$(call install,--no-build-isolation -e . -e packages/coupled-adam)
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "Installing what tests and lint need."
	@$(call install,--no-build-isolation -e '.[dev]' -e packages/coupled-adam)
	@touch $@
