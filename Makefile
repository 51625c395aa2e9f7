# Every target works from a fresh clone: `make demo` shows the product, `make test` checks it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed.stamp
# The clients that the HTTP interface is tested with are many packages; no demo needs them.
CLIENTS := .venv/clients.stamp
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PROMPT ?= What is the capital of France, and what is it known for?
# The demo model lives outside the checkout, so that clones share it.
export STAGELINE_DEMO_DIR

.PHONY: demo test lint protocol-doc clean

demo: $(STAMP)
	@model=$$($(BIN)/python -m tools.demo_model) && \
	$(BIN)/orchestrator run --local 2 --model-id "$$model" --max-new-tokens 160 --prompt "$(PROMPT)" && \
	echo "the demo model lies in $$model" >&2

test: $(CLIENTS)
	$(BIN)/python tools/check.py

lint: $(STAMP)
	$(BIN)/python tools/check.py --only format --only lint --only layers --only protocol --only types

protocol-doc: $(STAMP)
	$(BIN)/python -m tools.protocol_doc

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e '.[dev]'
	touch $@

$(CLIENTS): $(STAMP)
	$(PIP_INSTALL) -e '.[dev,clients]'
	touch $@
