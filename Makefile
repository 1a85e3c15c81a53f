# Each target does all of its own set-up. `make demo` needs Python 3.11; the others Go 1.26 too, for the peers.
PY := .venv/bin/python

.PHONY: demo setup packages images dev peers peers-extended machine-image lint test interop soak bench clean

demo: setup ## the main job, visible
	@.venv/bin/herder demo

setup: ## .venv/bin/herder, and nothing else
	@scripts/setup runtime

packages: setup ## wheel and sdist of the last commit in dist/, reproducibly
	@$(PY) -m tools.packages

images: setup ## OCI images of the last commit in dist/images/; PUSH=REGISTRY/PREFIX pushes them too, MIRROR=URL names Debian mirrors
	@$(PY) -m tools.images $(if $(PUSH),--push $(PUSH)) $(foreach url,$(MIRROR),--mirror $(url))

dev:
	@scripts/setup dev

peers: dev ## the real programs that `make test` runs against, built once into a cache outside the tree
	@$(PY) peers/build.py --core >/dev/null

peers-extended: dev ## all real programs: those of `make interop`, `make soak` and `make bench` too
	@$(PY) peers/build.py >/dev/null

machine-image: dev ## the Debian image of local machines: building it takes minutes, which no test should have to wait for
	@[ "$$(id -u)" != 0 ] || $(PY) -m herder.machine.host.local.image --kubernetes

lint: dev
	@.venv/bin/ruff format --check -q .
	@.venv/bin/ruff check -q .
	@.venv/bin/mypy
	@.venv/bin/lint-imports --no-cache

test: dev peers machine-image lint ## everything that must stay true
	@$(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not extended and not soak"

interop: peers-extended ## tests against the extended peers; results go to docs/results/
	@$(PY) -m tests.results interop

soak: peers-extended ## the long runs; results go to docs/results/
	@$(PY) -m tests.soak

bench: peers-extended ## against the peers, as ratios; results go to docs/results/
	@$(PY) -m bench

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
