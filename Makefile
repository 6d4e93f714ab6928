# Two commands: `make dashboard` and `make test`.  Everything they need goes into .venv and .asv of this clone.

LAST ?= 5
PYTEST ?= -n 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
export ASCEND_PERF_CACHE ?= $(CURDIR)/.asv/cache
export TORCH_DEVICE_BACKEND_AUTOLOAD ?= 0

.PHONY: help dashboard test tables lint results clean

help:
	@echo "make dashboard   measure the last $(LAST) commits that touch kernels and build the pages"
	@echo "make test        lint, types and tests"
	@echo "make tables      docs/outside-kernels.md and docs/patterns.md, with every compiler that is here"
	@echo "make clean       remove .venv and .asv"

dashboard: results
	@$(BIN)/ascend-perf dashboard

results: $(STAMP)
	@$(BIN)/ascend-perf run --last $(LAST)

test: lint
	@$(BIN)/python -m pytest $(PYTEST)

tables: $(STAMP)
	@$(BIN)/python -m tests.outside_kernels
	@$(BIN)/python -m tests.pattern_table

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# The Ascend compiler's wheels exist for CPython 3.10 and 3.11.
$(STAMP): pyproject.toml constraints.txt
	@set -e; found=; \
	for python in $(PYTHON) python3.11 python3.10 python3 python; do \
	  if "$$python" -c 'import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' 2>/dev/null; \
	  then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Install Python 3.11 with its venv module (or name one: make PYTHON=/path/to/python3.11)." >&2; exit 4; \
	fi; \
	echo "setting up $(VENV) with $$($$found --version)"; \
	"$$found" -m venv $(VENV); \
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[model,dash,fleet,test]'; \
	touch $(STAMP)

clean:
	rm -rf $(VENV) .asv
