# Needs Python >= 3.11 and git; everything else goes into .venv, set up again when pyproject.toml changes.
PYTHON ?= python3
DEMO_ARGS ?=
TEST_ARGS ?=
SOAK_ARGS ?=
# Most tests wait for processes they started: four at once on two cores take half the time. A file's tests stay together, the longest first.
WORKERS ?= -n 4 --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
RUNTIME := .venv/.runtime
TESTING := .venv/.testing

.PHONY: demo test test-engines test-engines-long test-faults test-faults-long soak check clean

demo: $(RUNTIME)  ## the whole loop on a real model, on this machine
	$(BIN)/python examples/math/sft_allinone.py --preset demo --heldout 64 $(DEMO_ARGS)

test: $(TESTING)  ## everything but the two below
	$(BIN)/python -m pytest tests --ignore=tests/engines --ignore=tests/faults $(WORKERS) $(TEST_ARGS)

test-faults: $(TESTING)  ## kill tests
	$(BIN)/python -m pytest tests/faults -n 2 --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

test-faults-long: $(TESTING)  ## the store's, and random queues, ten times as often
	LEYDEN_FAULT_SCALE=10 $(BIN)/python -m pytest tests/faults/test_store_*.py tests/faults/test_claim_races.py tests/server/test_store_machine_*.py -n 2 --dist loadfile --no-loadscope-reorder $(TEST_ARGS)

test-engines: $(TESTING) .venv-vllm/.ready .venv-unsloth/.ready  ## two iterations with real vLLM and real Unsloth (see docs/gpu.md)
	$(BIN)/python -m pytest tests/engines --ignore=tests/engines/test_clients_vllm.py --ignore=tests/engines/test_token_fidelity.py $(TEST_ARGS)

test-engines-long: $(TESTING) .venv-vllm/.ready .venv-unsloth/.ready  ## every client and exact mode against real vLLM as well
	$(BIN)/python -m pytest tests/engines $(TEST_ARGS)

soak: $(TESTING)  ## an hour of light work with small faults: nothing may grow, leak or get lost
	@mkdir -p runs
	$(BIN)/python benchmarks/soak.py --seconds 3600 --json runs/soak.json $(SOAK_ARGS)

check: $(TESTING)  ## lint and types
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:  ## remove what can be made again; runs/ and models/ stay
	rm -rf .venv .venv-vllm .venv-unsloth build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find leyden tests examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUNTIME): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: $(PYTHON) is older than 3.11'; echo 'hint: name a newer one: make PYTHON=python3.12 ...'; exit 2; } >&2
	@echo 'setting up .venv (some minutes the first time)' >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[runners,train]'
	@touch $@

# An environment for each, for they exclude each other; built once, and again when its list of packages changes.
.venv-vllm/.ready .venv-unsloth/.ready: .venv-%/.ready: tests/engines/%.txt
	@echo 'setting up .venv-$* (some minutes the first time)' >&2
	@$(PYTHON) -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@.venv-$*/bin/python -m pip uninstall --quiet --yes $$(sed -n 's/^# then remove: //p' $<)
	@touch $@

$(TESTING): $(RUNTIME) pyproject.toml
	@echo 'adding the test tools to .venv' >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[runners,train,test]'
	@touch $@
