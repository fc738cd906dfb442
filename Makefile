# Every target sets up what it needs: a virtual environment in .venv, made once and reused.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FRAMEWORKS := .venv-frameworks
TORCH ?= torch==2.13.0
DEMO := demo
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
SEED ?= 0
NIGHT ?= nightly
FASHION ?= /usr/share/datasets/fashion-mnist
NIGHTLY ?= test-thorough test-slow test-release test-browser check-conformance fuzz-night check-tables
NOT_OTHERS := not slow and not release and not browser and not frameworks
SUITE = $(BIN)/pytest -q -n $(JOBS) --dist worksteal $(if $(BROWSER),--browser=$(BROWSER))
GOLDENS := tests/compiler/test_passes.py tests/compiler/test_thesis.py tests/spatial/lowering/test_tile_lowering.py tests/transforms/test_goldens.py
# Stores the tables that a benchmark prints for the pages, with STORE=1: names of the tables, `-` for none of them.
stored = $(if $(STORE),| $(BIN)/python -m benchmarks.tables.store_tables $(1))
PLANTED = $(BIN)/python -m tests.fuzz planted decisions --long --jobs $(JOBS)
FUZZ_PARTS := graphs quantised defective relations programs models files given faults
# Tests start hundreds of commands, which read what the first one compiled.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-all test-thorough test-slow test-release test-browser test-frameworks goldens zoo-table nightly fuzz fuzz-short fuzz-night planted notebook conformance check-conformance check-tables replay docs docs-generate lint format bench bench-accuracy bench-analog bench-binds bench-blocks bench-device bench-evaluation bench-gpt2 bench-growth bench-fashion bench-hardened bench-json bench-mapping bench-memory bench-mixed bench-occ bench-overlap bench-placement bench-proved bench-pruned bench-rounds bench-chips bench-commands bench-components bench-decoder bench-defects bench-exports bench-simulate bench-sizes bench-slow bench-streaming bench-thesis bench-tokens bench-verdict bench-yield clean

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(READY)  ## build ResNet-18, compile it, validate it
	mkdir -p $(DEMO)
	$(BIN)/raptor models resnet18 -o $(DEMO)/resnet18.onnx --force
	$(BIN)/raptor compile $(DEMO)/resnet18.onnx --xbar 128 --cores 200 -o $(DEMO)/out --force
	$(BIN)/raptor validate $(DEMO)/out

test: $(READY)  ## the test suite: the quick cases of every test; BROWSER=required fails without Chromium
	$(SUITE) -m "not thorough and $(NOT_OTHERS)"

test-thorough: $(READY)  ## the other cases of it (tests/tiers.toml)
	$(SUITE) -m "thorough and $(NOT_OTHERS)"

test-all: test test-thorough  ## both

test-slow: $(READY)  ## full-size models, long sweeps, every planted defect
	$(BIN)/pytest -q -m slow -n $(JOBS); slow=$$?; $(PLANTED) && exit $$slow

test-browser: $(READY)  ## the documentation in a headless Chromium
	$(BIN)/pytest -q -m browser --browser=required

test-frameworks:  ## PyTorch, JAX, Keras, scikit-learn, xDSL and mcp as they are, in an environment of its own: .venv-frameworks
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check onnxscript keras -e '.[dev,jax,mcp,mlir,sklearn]'
	$(FRAMEWORKS)/bin/pytest -q -m frameworks

test-release: $(READY)  ## wheel and source archive, each alone in a fresh environment
	$(BIN)/pytest -q -m release

goldens: $(READY)  ## write the texts of passes in tests/golden anew; look at their diff before you commit it
	rm -rf tests/golden
	$(BIN)/pytest -q --update-golden $(GOLDENS)

zoo-table: $(READY)  ## write tests/models/zoo_table.json anew: instructions, bytes, crossbars, time of every model; the commit says why
	$(BIN)/python -m tests.models.zoo_table --jobs $(JOBS)

fuzz: $(READY)  ## the whole fuzz campaign, hours; FUZZ="programs --count 1000 --seed 5" for a part of it
	$(BIN)/python -m tests.fuzz --long --jobs $(JOBS) $(FUZZ)

fuzz-short: $(READY)  ## two minutes of it, for CI
	$(BIN)/python -m tests.fuzz --jobs $(JOBS) $(FUZZ)

fuzz-night: $(READY)  ## a minute of each part of it; SEED=90000 for other cases
	$(BIN)/python -m tests.fuzz --long --jobs $(JOBS) --seconds 60 --seed $(SEED) $(FUZZ_PARTS)

planted: $(READY)  ## every planted defect must be caught by what checks programs, every wrong decision by a test
	$(PLANTED)

conformance: $(READY)  ## ONNX's backend suite; writes docs/reference/conformance.md, fails if a case passed before and fails now
	$(BIN)/python -m tests.conformance.table

check-conformance: $(READY)  ## the same; writes nothing, fails if the list or the page would differ
	$(BIN)/python -m tests.conformance.table --check

docs: $(READY)  ## the documentation as a site; fails on a dead link
	@# with --quiet, mkdocs would not count what it warns of
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict > site.log 2>&1 || { cat site.log; exit 1; }
	@echo 'site/index.html; with search: $(BIN)/mkdocs serve'

docs-generate: $(READY)  ## write the pages, schemas and drawings of docs/ that are made from the code
	$(BIN)/python -m docgen

replay: $(READY)  ## what the working tree compiles against BASE=COMMIT, byte for byte; REPLAY="--full" for full sizes
	$(BIN)/python -m tests.replay $(or $(BASE),HEAD) --jobs $(JOBS) $(REPLAY)

notebook: $(READY)  ## run the notebook and store what it prints
	$(BIN)/python -m tests.project.notebook examples/tour.ipynb --update

lint: $(READY)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

bench: $(READY)  ## time and memory of compile and validate by both mappings, beside baselines of the same run
	$(BIN)/python -m benchmarks.speed.compile_and_validate
	$(BIN)/python -m benchmarks.speed.command_times
	$(BIN)/python -m benchmarks.speed.integer_programs

bench-accuracy: $(READY)  ## accuracy of the trained network in each form of quantisation, by onnxruntime and by streams; STORE=1 stores it
	$(BIN)/python -m benchmarks.correctness.accuracy $(call stored,quantisation-accuracy)

bench-analog: $(READY)  ## accuracy of the trained network on crossbars with converters and errors of cells: the tables of docs/how-to/analog.md; STORE=1 stores them
	$(BIN)/python -m benchmarks.correctness.analog $(call stored,analog-devices analog-rows-binary analog-rows - analog-ranges analog-cuts)

bench-defects: $(READY)  ## accuracy and yield of the trained network on chips with stuck cells, latency with dead cores: the tables of docs/how-to/defects.md; STORE=1 stores them
	$(BIN)/python -m benchmarks.correctness.defects $(call stored,defects-stuck defects-dead)

bench-yield: $(READY)  ## yield of 1000 chips by three methods, and the minutes: the table of docs/how-to/defects.md; STORE=1 stores it
	$(BIN)/python -m benchmarks.correctness.chip_yield $(call stored,yield)

bench-hardened: $(READY)  ## accuracy on chips of the network as given, equalised, trimmed and trained (needs PyTorch, and aihwkit-lightning for a row): the table of docs/how-to/harden.md; HARDENED="--folder KEPT"; STORE=1 stores it
	$(BIN)/python -m benchmarks.correctness.hardened $(HARDENED) $(call stored,hardened-digits)

bench-fashion: $(READY)  ## the same of LeNet-5 with Fashion-MNIST (Debian: dataset-fashion-mnist), with all 10,000 test images; FASHION=FOLDER of its files, HARDENED="--chips 10"; STORE=1 stores it
	$(BIN)/python -m benchmarks.correctness.hardened --data fashion-mnist --source $(FASHION) --network lenet5 --epochs 4 \
		--devices reram-milo --forms "int8, equalised, trimmed" "int8, trained" $(HARDENED) $(call stored,hardened-fashion)

bench-pruned: $(READY)  ## crossbars, time, energy and accuracy of the trained network with tiles of zeros (needs PyTorch): the table of docs/how-to/sparsity.md; STORE=1 stores it
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.correctness.pruned $(call stored,pruned-digits)

bench-growth: $(READY)  ## how compilation by both mappings grows with image size, channels, cores, model size; STORE=1 stores them
	$(BIN)/python -m benchmarks.speed.growth $(call stored,growth-width growth-channels growth-cores growth-model)
	$(BIN)/python -m benchmarks.speed.growth --mapping rows $(call stored,growth-rows-width - growth-rows-cores growth-rows-cores-200 growth-rows-model)

bench-sizes: $(READY)  ## all commands by the size of an image, a signal, a sequence, on 144, 400 and 1000 cores; SIZES="signal --cores 144"; STORE=1 stores them
	$(BIN)/python -m benchmarks.speed.sizes $(SIZES) $(call stored,sizes)

bench-commands: $(READY)  ## the part of it on the default mapping: whole commands, warm, and cold without compiled kernels; STORE=1 stores them
	$(BIN)/python -m benchmarks.speed.command_times $(call stored,commands)

bench-decoder: $(READY)  ## what a token of the trained language model costs, by capacity of its caches; simulated, tokens validated; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.decoder_steps $(call stored,decoder)

bench-gpt2: $(READY)  ## what a token of a decoder in the form of GPT-2 small costs, with random weights; 8 tokens validated; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.decoder_steps --gpt2 --steps 8 256 1024 $(call stored,gpt2)

bench-tokens: $(READY)  ## texts of the trained language model, greedy and sampled, with weights of 8 and 4 bits, beside onnxruntime's; STORE=1 stores it
	$(BIN)/python -m benchmarks.correctness.sampled_tokens $(call stored,tokens)

bench-exports: $(READY)  ## small decoders as exporters write them: time of a step, tokens beside onnxruntime's; EXPORTERS="torch=PYTHON optimum=PYTHON genai=PYTHON", each with its environment; STORE=1 stores them
	$(BIN)/python -m benchmarks.correctness.exported_decoders $(EXPORTERS) $(call stored,exports)

bench-device: $(READY)  ## products a second of the back ends of raptor.device
	$(BIN)/python -m benchmarks.speed.device_products

bench-occ: $(READY)  ## docs/how-to/occ-kernels.md: writes and products of the kernels of OCC
	$(BIN)/python -m benchmarks.programs.occ_kernels

bench-json: $(READY)  ## reading and writing JSON streams in several ways, with ratios
	$(BIN)/python -m benchmarks.speed.json_streams

bench-mapping: $(READY)  ## latency, throughput, energy, memory of both mappings; simulated
	$(BIN)/python -m benchmarks.programs.mapping_figures

bench-binds: $(READY)  ## what binds the interval of each model: even work, busiest core, port; simulated; BINDS="--optimize latency"; STORE=1 stores them
	$(BIN)/python -m benchmarks.programs.interval_limits $(BINDS) $(call stored,binds)

bench-proved: $(READY)  ## how near programs are to the bound of every mapping; PROVED="--optimize throughput"; simulated
	$(BIN)/python -m benchmarks.programs.proved_bounds $(PROVED)

bench-evaluation: $(READY)  ## times that are evaluated before lowering, by simulated ones; STORE=1 stores them
	$(BIN)/python -m benchmarks.search.evaluated_times $(call stored,evaluation)

bench-blocks: $(READY)  ## small blocks of networks: the interval by the even work; BLOCKS="cbam gqa" for some of them
	$(BIN)/python -m benchmarks.programs.small_blocks $(BLOCKS)

bench-slow: $(READY)  ## small models of unusual kinds: the interval by its bound; simulated; SLOW="frames sentence" for some; STORE=1 stores all
	$(BIN)/python -m benchmarks.programs.slow_kinds $(SLOW) $(call stored,slow)

bench-memory: $(READY)  ## what programs gain if constants and states stay on the chip: the table of docs/how-to/memory.md; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.resident_values $(MEMORY) $(call stored,memory)

bench-overlap: $(READY)  ## what stages gain, in which samples overlap: the second table of docs/how-to/memory.md; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.sample_overlap $(OVERLAP) $(call stored,overlap)

bench-components: $(READY)  ## studies of chips from components, by area, energy, accuracy and latency: tables of docs/how-to/chips.md; STORE=1 stores them
	$(BIN)/python -m benchmarks.search.component_studies $(call stored,components-digits components-tiny)

bench-mixed: $(READY)  ## what published policies of mixed precision save, by their own cost model and simulated: tables of docs/how-to/quantisation.md; STORE=1 stores them
	$(BIN)/python -m benchmarks.programs.mixed_precision $(call stored,quantisation-policy quantisation-policies)

bench-chips: $(READY)  ## several chips beside one of the same cores: the table of docs/how-to/rounds.md; simulated; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.several_chips $(call stored,chips)

bench-rounds: $(READY)  ## cuts of a model in rounds by three methods: the table of docs/how-to/rounds.md; simulated; STORE=1 stores it
	$(BIN)/python -m benchmarks.programs.round_cuts $(call stored,rounds)

bench-placement: $(READY)  ## time to place cores on the mesh, by their number, beside a baseline of the same run
	$(BIN)/python -m benchmarks.speed.core_placement

bench-streaming: $(READY)  ## row streaming against layer by layer: latency, speed-up, utilisation; simulated
	$(BIN)/python -m benchmarks.programs.streaming

bench-simulate: $(READY)  ## time of simulate and check; PIMSIM=/path/to/ChipTest to compare with pimsim-nn
	$(BIN)/python -m benchmarks.speed.simulator_times $(if $(PIMSIM),--pimsim $(PIMSIM))

bench-thesis: $(READY)  ## the thesis's figures again: docs/images/thesis and the tables of docs/explanation/thesis-figures.md, stored
	$(BIN)/python -m benchmarks.programs.thesis_figures

check-tables: $(READY)  ## the simulated tables of the pages against what the code makes now; TABLES="streaming --write" stores them
	$(BIN)/python -m benchmarks.tables.check_tables --jobs $(JOBS) $(TABLES)

nightly: $(READY)  ## all that CI does not run, each part whatever became of the others; then a line for each
	@mkdir -p $(NIGHT); failed=; begin=$$(date +%s); : > $(NIGHT)/summary; \
	for part in $(NIGHTLY); do \
	    echo "nightly: $$part"; start=$$(date +%s); \
	    if $(MAKE) --no-print-directory $$part > $(NIGHT)/$$part.log 2>&1; then how=passed; else how=FAILED; failed="$$failed $$part"; fi; \
	    echo "$$how  $$part  $$(($$(date +%s) - start)) s  $(NIGHT)/$$part.log" >> $(NIGHT)/summary; \
	    tail -n 3 $(NIGHT)/$$part.log; \
	done; \
	echo; cat $(NIGHT)/summary; \
	echo "nightly: $$(if [ -n "$$failed" ]; then echo FAILED:$$failed; else echo passed; fi), $$(($$(date +%s) - begin)) s"; \
	test -z "$$failed"

bench-verdict: $(READY)  ## how often the rules of validate are wrong: the table of docs/explanation/verdict.md, in about an hour; STORE=1 stores it
	rm -f verdict.jsonl
	for part in zoo conformance planted "graphs --count 2000 --right" "graphs --first 2000 --count 150"; do \
		OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.correctness.verdict $$part >/dev/null || exit 1; done
	$(BIN)/python -m benchmarks.correctness.verdict $(call stored,verdict)

format: $(READY)  ## ruff format, and what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(FRAMEWORKS) $(DEMO) $(NIGHT) .replay out site dist

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "RAPTOR needs Python 3.11 or newer; try: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall --quiet --yes --disable-pip-version-check raptor 2>/dev/null  # its earlier name
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[dev,docs]'  # Python compiles what is used
	touch $@
