# Each target does all of its own set-up. `make demo` needs Python 3.11; the others Go 1.26 too, for the peers.
PY := .venv/bin/python

.PHONY: demo setup dev peers lint test soak bench clean

demo: setup ## the main job, visible
	@.venv/bin/herder demo

setup: ## .venv/bin/herder, and nothing else
	@scripts/setup runtime

dev:
	@scripts/setup dev

peers: dev ## the real programs that tests and benchmarks run against, built once into a cache outside the tree
	@$(PY) peers/build.py >/dev/null

lint: dev
	@.venv/bin/ruff format --check -q .
	@.venv/bin/ruff check -q .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

test: dev peers lint ## everything that must stay true
	@$(PY) -m pytest -n 2 --dist loadfile

soak: dev peers ## the long runs; results go to docs/results/
	@$(PY) -m tests.soak

bench: dev peers ## against the peers, as ratios; results go to docs/results/
	@$(PY) -m bench

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
