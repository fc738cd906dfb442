# Every target sets up what it needs: a virtual environment in .venv, made once and reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo
JOBS ?= 2

.PHONY: demo test test-slow test-release test-browser fuzz fuzz-short notebook conformance docs docs-generate lint format bench bench-growth bench-mapping bench-simulate bench-streaming bench-thesis clean

demo: $(READY)  ## build ResNet-18, compile it, validate it
	mkdir -p $(DEMO)
	$(BIN)/raptor models resnet18 -o $(DEMO)/resnet18.onnx --force
	$(BIN)/raptor compile $(DEMO)/resnet18.onnx --xbar 128 --cores 200 -o $(DEMO)/out --force
	$(BIN)/raptor validate $(DEMO)/out

test: $(READY)  ## the test suite without its slow part
	$(BIN)/pytest -q -n $(JOBS)

test-slow: $(READY)  ## full-size models, long sweeps
	$(BIN)/pytest -q -m slow

test-browser: $(READY)  ## the documentation in a headless Chromium
	$(BIN)/pytest -q -m browser

test-release: $(READY)  ## wheel and source archive, each alone in a fresh environment
	$(BIN)/pytest -q -m release

fuzz: $(READY)  ## the whole fuzz campaign, hours; FUZZ="programs --count 1000 --seed 5" for a part of it
	$(BIN)/python -m tests.fuzz --long --jobs $(JOBS) $(FUZZ)

fuzz-short: $(READY)  ## two minutes of it, for CI
	$(BIN)/python -m tests.fuzz --jobs $(JOBS) $(FUZZ)

conformance: $(READY)  ## ONNX's backend suite; writes docs/conformance.md, fails if a case passed before and fails now
	$(BIN)/python -m tests.conformance.table

docs: $(READY)  ## the documentation as a site; fails on a dead link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'site/index.html; with search: $(BIN)/mkdocs serve'

docs-generate: $(READY)  ## write the pages, schemas and drawings of docs/ that are made from the code
	$(BIN)/python -m docgen

notebook: $(READY)  ## run the notebook and store what it prints
	$(BIN)/python -m tests.notebook examples/tour.ipynb --update

lint: $(READY)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: $(READY)  ## time and memory of compile and validate by both mappings, beside baselines of the same run
	$(BIN)/python benchmarks/bench.py

bench-growth: $(READY)  ## how compilation by the reference mapping grows with image size, channels, cores, model size
	$(BIN)/python benchmarks/growth.py

bench-mapping: $(READY)  ## latency, throughput, energy, memory of both mappings; simulated
	$(BIN)/python benchmarks/mapping.py

bench-streaming: $(READY)  ## row streaming against layer by layer: latency, speed-up, utilisation; simulated
	$(BIN)/python benchmarks/streaming.py

bench-simulate: $(READY)  ## time of simulate and check; PIMSIM=/path/to/ChipTest to compare with pimsim-nn
	$(BIN)/python benchmarks/simulate.py $(if $(PIMSIM),--pimsim $(PIMSIM))

bench-thesis: $(READY)  ## the thesis's figures again: docs/images/thesis and the tables of docs/thesis-figures.md
	$(BIN)/python benchmarks/thesis_figures.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(DEMO) out site dist

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "RAPTOR needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,docs]'
	touch $@
