# Needs Python 3.11 or newer and make; everything else is installed into .venv.
# Another build of torch:  make setup TORCH='torch==2.13.0'
# Longer random testing:   make fuzz PENSTOCK_FUZZ=5000
# All sizes of benchmarks: make bench BENCH=--full

PYTHON ?= python3
TORCH ?= torch==2.13.0
PENSTOCK_FUZZ ?= 1000
WORKERS ?= 2
BENCH ?=

BIN := .venv/bin
STAMP := .venv/penstock-setup

.PHONY: setup demo test checks browser docs fuzz bench clean

setup: $(STAMP)

# torch comes first and pinned, so that the second step finds its requirement satisfied.
$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/penstock demo

# A worker keeps to neighbouring tests, which share what they have built, until it has none left.
test: setup
	$(MAKE) --jobs 2 docs checks
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -rs

checks: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site is in build/site; warnings are errors.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# The page of a profile in a real browser: the one on the path, or one that is fetched (110 MB).
browser: setup
	command -v chromium || command -v chromium-browser || $(BIN)/playwright install --only-shell chromium
	PENSTOCK_BROWSER=1 $(BIN)/pytest tests/browser -rs

fuzz: setup
	PENSTOCK_FUZZ=$(PENSTOCK_FUZZ) $(BIN)/pytest tests/properties --timeout=0 -n $(WORKERS)

bench: setup
	$(BIN)/penstock bench --record $(BENCH)

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
