# Two commands do all the set-up: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FIGURES := out/figures

.PHONY: demo test lint bench figures sweep accuracy serving models screenshots clean

demo: $(STAMP)
	@echo "Llama-3.1-8B, 2048 prompt tokens, 2:4 weights, on an A100 PCIe:"
	$(BIN)/sparsesim simulate llama-3.1-8b --phase prefill --tokens 2048 --gpu a100_pcie_80gb
	@echo "Where the slowest layer's promised 2x went:"
	$(BIN)/sparsesim explain --gpu a100_pcie_80gb -m 28672 -n 2048 -k 4096 --dtype bf16
	$(MAKE) --no-print-directory figures

figures: $(STAMP)
	$(BIN)/python plots/make_all.py --out $(FIGURES)

models: $(STAMP)
	$(BIN)/python tests/make_models.py out/models

sweep: $(STAMP)
	$(BIN)/sparsesim sweep sweeps/a100_designs.toml --out out/a100_designs
	$(BIN)/python plots/design_sweep.py --store out/a100_designs --out $(FIGURES)

test: lint
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

screenshots: $(STAMP)
	SCREENSHOTS=docs/figures $(BIN)/python -m pytest tests/test_explore.py -k screenshot

bench: $(STAMP)
	$(BIN)/python bench/bench.py

serving: $(STAMP)
	$(BIN)/python bench/serving.py ../shared/measured/endtoend.csv $(wildcard ../shared/measured/sparse/slidesparse_*.csv)

accuracy: $(STAMP)
	$(BIN)/python bench/accuracy.py ../shared/measured

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sparsesim needs Python 3.11 or newer, found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache
