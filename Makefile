# `make demo` and `make test` work from a fresh clone with Python 3.11 to 3.13, make and a package index, and without
# network once installed. Where PyTorch for CUDA, the default on Linux, is too large:
#   make install TORCH=cpu

# Candidates, the first that fits is taken; `make PYTHON=/path/to/python3.12 demo` takes that one.
PYTHON ?= python3 python3.13 python3.12 python3.11
# Which PyTorch is installed: as pip chooses, or `cpu`.
TORCH ?=
STAMP := .venv/.installed
DEV_STAMP := .venv/.installed-dev
CUDA_STAMP := .venv-cuda/.installed
DOCS_STAMP := .venv-docs/.installed

# Recipes and what they start find the virtual environment first.
VENV := .venv
RUN = PATH="$$PWD/$(VENV)/bin:$$PATH"
SNAKEFILES := Snakefile workflow/Snakefile rules
# Our optimizer, our measure and our registry are distributions of their own, which are on no index.
# The bench stands before them in each call: else pip looks for it on an index when the registry asks for it.
PACKAGES := -e packages/coupled-adam -e packages/embedding-geometry -e packages/coupled-adam-registry

.DEFAULT_GOAL := help
.PHONY: help install install-dev demo test nightly test-cuda attack lint registry claims findings docs check schema examples reliability skill rulegraph address clean-venv

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{printf "%-18s %s\n", $$1, $$2}'

install: $(STAMP)  ## Create .venv and install what studies need, with pinned versions

install-dev: $(DEV_STAMP)  ## Install what tests and lint need, too

demo: $(STAMP)  ## Run the demo study: minutes on 2 CPU cores, nothing from outside
	$(RUN) snakemake --cores all

# One thread per worker: the models of the tests are tiny. With files of bytecode, the many jobs of the tests start sooner.
TEST = $(RUN) OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 MLFLOW_DISABLE_TELEMETRY=true PYTHONDONTWRITEBYTECODE=
# Two workers more than the two cores of small machines: tests also wait, for servers, limits of time and each other.
PYTEST := python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder

test: $(DEV_STAMP)  ## Run the tests: each proof once, up to ten minutes on 2 cores
	$(TEST) $(PYTEST) -m "not nightly"

nightly: $(DEV_STAMP) test-cuda  ## Run all tests on draws of its own, with those that repeat a proof under stress
	$(TEST) CAB_REAL_STARTS=1 $(PYTEST) --hypothesis-profile=other-draws

test-cuda: VENV := .venv-cuda
test-cuda: $(CUDA_STAMP)  ## Run the tests of training and rehearsal with the newest PyTorch for CUDA: 7 GB, no GPU needed
	$(TEST) $(PYTEST) tests/unit/tools/rehearsal tests/unit/optim tests/unit/models tests/unit/training \
	  packages/coupled-adam packages/embedding-geometry

# Where the draws begin: `make attack FIRST=$(date +%Y%m%d)` has others every day.
FIRST ?= 0

attack: $(DEV_STAMP)  ## Inject faults at random for hours: 500 damages, 2,000 drawn studies, 100 orders of work
	$(TEST) CAB_FIRST_DRAW=$(FIRST) CAB_DAMAGE_DRAWS=500 CAB_STUDY_DRAWS=2000 CAB_ORDER_DRAWS=100 \
	  $(PYTEST) tests/attack tests/workflow/test_faults.py

lint: $(DEV_STAMP)  ## Check style, types and Snakemake files
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) snakefmt --check $(SNAKEFILES)

registry: $(STAMP)  ## Check all bundles of others' results, and train a cell of each that this branch adds again
	$(RUN) OMP_NUM_THREADS=1 python -m coupled_adam_bench registry check
	added=$$(.ci/added-bundles) && { [ -z "$$added" ] \
	  || $(RUN) OMP_NUM_THREADS=1 python -m coupled_adam_bench registry check $$added --again 1; }

claims: $(STAMP)  ## Check what README, docs and research/ say of studies, and write claims.json for machines
	$(RUN) python research/claims.py

# Not a part of the tests: a finding that no longer holds is news of a library.
findings:  ## Run all findings, each in an environment of its own, which may take an hour
	@mkdir -p build/findings; failed=0; for script in findings/*.sh; do \
	  name=$$(basename $$script .sh); log=build/findings/$$name.log; \
	  if $$script > $$log 2>&1; then result=holds; else result="differs or could not run: $$log"; failed=1; fi; \
	  printf '%-42s %s\n' $$name "$$result"; \
	done; exit $$failed

docs: $(DOCS_STAMP)  ## Build the site of the pages into site/; python -m http.server -d site shows it
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

check: lint registry test  ## Run lint, registry and test

schema: $(STAMP)  ## Write the JSON schemas anew, after a change of settings or of the form of bundles
	$(RUN) python -m coupled_adam_bench schema --out workflow/schemas

examples: $(DEV_STAMP)  ## Make all examples anew after a label or a table changed: golden tables, demo, book, README
	$(RUN) snakemake --cores all --forcerun report_of_study
	$(TEST) CAB_UPDATE_GOLDEN=1 python -m pytest -q tests/unit/report/test_table_rendering.py -k golden
	$(RUN) python research/examples.py

reliability: $(STAMP)  ## List the faults that tests inject, in build/faults.md
	mkdir -p build
	$(RUN) python tests/unit/test_reliability_page.py build/faults.md

skill: $(STAMP)  ## Write AGENTS.md anew as a skill (.agents/skills), after a change of it
	$(RUN) python tests/unit/test_skill.py

# Filled boxes on no background can be read on a light and on a dark page.
rulegraph: $(STAMP)  ## Draw the rules of the demo for docs/run.md anew; needs graphviz
	$(RUN) snakemake --rulegraph dot \
	  | sed 's/bgcolor=white, margin=0/bgcolor=transparent, margin=0, rankdir=LR, ranksep=0.3/; s/style="rounded"/style="rounded,filled", fillcolor="#f6f8fa"/' \
	  | tred | dot -Tsvg > docs/images/rulegraph.svg

ADDRESSED := pyproject.toml CITATION.cff docs/examples/demo/croissant.json README.md packages/coupled-adam/pyproject.toml packages/coupled-adam/README.md packages/embedding-geometry/pyproject.toml packages/embedding-geometry/README.md packages/coupled-adam-registry/pyproject.toml packages/coupled-adam-registry/README.md

address:  ## Set the address of this repository, which pyproject.toml knows: make address ADDRESS=https://...
	@[ -n "$(ADDRESS)" ] || { echo "Say which: make address ADDRESS=https://..." >&2; exit 1; }
	@old=$$(sed -n 's/^Repository = "\(.*\)"$$/\1/p' pyproject.toml) && sed -i "s|$$old|$(ADDRESS)|g" $(ADDRESSED)

clean-venv:  ## Delete .venv, .venv-cuda and .venv-docs
	rm -rf .venv .venv-cuda .venv-docs

virtual_environment = [ -x $(1)/bin/python ] || { \
  for python in $(PYTHON); do \
    "$$python" -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
      && exec "$$python" -m venv $(1); \
  done; \
  echo "No Python 3.11 to 3.13 with the module ensurepip among: $(PYTHON)." >&2; \
  echo "Install one (Debian, Ubuntu: python3 and python3-venv) or name it: make PYTHON=/path/to/python3.12" >&2; \
  exit 1; \
}

# What pip says goes to a log. Of it we show what is large, as it comes, and the end if pip fails.
INSTALL_LOG := .venv/install.log
FAILED := .venv/.failed
INDEX_OF_TORCH := $(if $(filter cpu,$(TORCH)),--extra-index-url https://download.pytorch.org/whl/cpu)
comma := ,
install = rm -f $(FAILED); { .venv/bin/python -m pip install $(INDEX_OF_TORCH) -c constraints.txt $(1) 2>&1 || touch $(FAILED); } \
  | tee -a $(INSTALL_LOG) | grep --line-buffered -oE '(Downloading|Using cached) .*[MG]B\)$$|^Installing collected packages'; \
  [ ! -e $(FAILED) ] || { tail -n 20 $(INSTALL_LOG); exit 1; }

# The stamps make a second call quick and independent of the network.
$(STAMP): pyproject.toml $(wildcard packages/*/pyproject.toml) constraints.txt
	@$(call virtual_environment,.venv)
	@echo "Installing PyTorch, transformers, lm-eval, MLflow, Snakemake and what they need into .venv: 5.4 GB with"
	@echo "PyTorch for CUDA, which pip takes on Linux, or 2.2 GB with \`make install TORCH=cpu\`. It takes some minutes."
	@echo "All that pip says is in $(INSTALL_LOG)."
	@$(call install,setuptools)
	@$(call install,--no-build-isolation -e '.[pipeline]' $(PACKAGES))
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "Installing what tests and lint need."
	@$(call install,--no-build-isolation -e '.[pipeline$(comma)dev]' $(PACKAGES))
	@touch $@

# The newest PyTorch, with its own Triton, and not from the index of the CPU build: what a user gets without our pins.
$(CUDA_STAMP): $(STAMP)
	@echo "Installing PyTorch for CUDA into .venv-cuda: 7 GB."
	.venv/bin/python -m venv .venv-cuda
	grep -Ev '^(torch|triton)==' constraints.txt > .venv-cuda/constraints.txt
	env -u PIP_EXTRA_INDEX_URL -u PIP_FIND_LINKS .venv-cuda/bin/python -m pip install --quiet \
	  -c .venv-cuda/constraints.txt --upgrade torch -e '.[pipeline,dev]' $(PACKAGES)
	.venv-cuda/bin/python -c 'import torch; assert torch.version.cuda, f"PyTorch {torch.__version__} is not built for CUDA"'
	@touch $@

# The site needs no package of the bench, so its tools are installed alone, in seconds.
$(DOCS_STAMP): pyproject.toml constraints.txt
	@$(call virtual_environment,.venv-docs)
	.venv-docs/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	  > .venv-docs/requirements.txt
	.venv-docs/bin/python -m pip install --quiet -c constraints.txt -r .venv-docs/requirements.txt
	@touch $@
