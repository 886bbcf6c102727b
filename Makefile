# What people type. `make demo` and `make test` set everything up on a fresh Debian or Ubuntu machine with cargo.
CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
FILES = $(or $(OUT),target/release-files)
export CARGO

# The demo's binary has no servers and no archives, two fifths of what there is to compile. With the servers' own features
# (`every-server`) all that it shares with other builds is compiled as there: `make test` compiles no dependency again.
DEMO_BUILD = --workspace --no-default-features --features every-server --bin rankmesh

.PHONY: help deps demo build wheel docs clean test lint check fuzz pictures bench dist deny sbom

help: ## this list
	@awk -F':.*## ' '/^#: / {print "\n" substr($$0, 4)} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

#: Begin
demo: deps ## the main job here: four agents, eight ranks, one of them late
	@scripts/expect.sh demo $(TARGET)
	$(CARGO) build --locked $(DEMO_BUILD)
	$(TARGET)/debug/rankmesh demo

build: deps ## the release binary: target/release/rankmesh
	@scripts/expect.sh release $(TARGET)
	RANKMESH_COMMIT=$$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown) $(CARGO) build --locked --release -p rankmesh

wheel: build ## a Python wheel with binary and module: target/wheels
	python3 python/build_wheel.py target/release/rankmesh target/wheels

docs: deps ## the pages as a site, the API documentation; warnings are errors
	scripts/tools.sh mdbook
	PATH="$$PATH:$(CURDIR)/target/tools/bin" mdbook build docs
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

deps: ## missing system packages (when allowed; says which otherwise)
	@scripts/deps.sh

clean: ## forget what was built
	$(CARGO) clean

#: Test
test: ## every test; as root also those that need eBPF
	@scripts/deps.sh --test
	scripts/test.sh

lint: deps ## formatting, clippy (warnings are errors), cargo-deny
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	@scripts/deny.sh --if-there

check: $(if $(NAME),deps) ## NAME=… what takes long or the network; no NAME: the names
	@scripts/check.sh $(NAME)

fuzz: deps ## changed inputs for what reads outside bytes (SECONDS, TARGETS)
	scripts/fuzz.sh $(or $(SECONDS),60) $(TARGETS)

pictures: deps ## the page and a report as pictures (OUT=target/pictures)
	@scripts/deps.sh --test
	mkdir -p $(or $(OUT),target/pictures)
	RANKMESH_PAGE_OUT=$(abspath $(or $(OUT),target/pictures)) RANKMESH_REPORT_OUT=$(abspath $(or $(OUT),target/pictures)) \
	$(CARGO) test --locked --workspace --test page --test report

#: Measure
bench: $(if $(NAME),deps) ## NAME=… one benchmark, with OPTIONS='…'; no NAME: the names
	@scripts/bench.sh $(NAME)

#: Publish
dist: ## a release's files for x86_64 and aarch64 (OUT, ARCH, SIGN_KEY)
	@scripts/deps.sh --dist
	scripts/dist.sh $(FILES) $(ARCH)

deny: ## licences, advisories, sources of dependencies, by cargo-deny
	@scripts/deny.sh

sbom: ## what the binary is made of, as CycloneDX: target/sbom.json
	scripts/sbom.sh target/sbom.json
	@echo target/sbom.json
