# The targets are short on purpose: what they run can be typed by hand. `make test` is what CI runs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
# The steps of `test` are in an order, cheap first; cargo uses all processors by itself.
.NOTPARALLEL:
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# The tests drive the fake kernel, which a release binary does not contain.
TEST := $(CARGO) test --locked --features fake-os

.PHONY: help build demo test deps deps-test fmt deny clippy test-unit test-csi test-root kernel-walk test-sanity test-vm test-deploy test-e2e e2e-local e2e-kind e2e-conformance bench doc clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the driver, release profile
	@echo '==> build'
	$(CARGO) build --release --locked

demo: deps build ## Build the driver and watch it serve a volume on this machine (root)
	@echo '==> demo'
	$(TARGET_DIR)/release/hostloop selftest

test: deps-test fmt deny clippy doc test-unit test-csi test-root test-sanity test-vm ## Run every check below, cheap first; stop at the first failure (root)
	@echo '==> all checks passed'

fmt: ## Check the formatting
	@echo '==> fmt'
	$(CARGO) fmt --all --check

deny: deps-test ## Check the dependencies: duplicates, licences, sources
	@echo '==> deny'
	PATH="$(CURDIR)/.cache/tools/bin:$$PATH" $(CARGO) deny --log-level warn check bans licenses sources

clippy: ## Lint everything; a warning is an error
	@echo '==> clippy'
	$(CARGO) clippy --all-targets --all-features --locked -- -D warnings

test-unit: ## Test the parts, the protocol file and the layering
	@echo '==> test-unit'
	$(TEST) --lib --bins --test protocol --test layers

test-csi: ## Test the RPCs on the fake kernel, with faults and kills at every step, and the cluster
	@echo '==> test-csi'
	$(TEST) --test contract --test csi --test cluster

test-root: deps ## Test on the real kernel (root)
	@echo '==> test-root'
	@if (( $$(id -u) != 0 )); then echo 'test-root mounts filesystems and attaches loop devices: run it as root' >&2; exit 1; fi
	$(TEST) --test root

# In a mount namespace of its own: whoever makes one meanwhile would copy the mounts, and so keep their devices.
kernel-walk: deps ## End and fail every system call on the real kernel; KERNEL_WALK='words;words' chooses (root, hours)
	@echo '==> kernel-walk'
	unshare --mount $(TEST) --test root kernel_walk::every_call -- --ignored --nocapture

test-sanity: deps-test ## Run csi-sanity against the release binary (root)
	@echo '==> test-sanity'
	tests/sanity/run

test-vm: deps-test ## Test on Debian's kernel in an emulated machine, and cut its power
	@echo '==> test-vm'
	tests/vm/root os_contract:: life:: thick::
	tests/vm/root copies::every_kind os_copies:: freeze:: groups::
	tests/vm/power-cut

# A release binary that is there has its flags compared with the manifests' arguments.
test-deploy: ## Check the chart and the manifests of deploy/ (Go; no cluster)
	@echo '==> test-deploy'
	tests/deploy/run $(addprefix --driver ,$(wildcard $(TARGET_DIR)/release/hostloop))
	tests/e2e/kind-test

test-e2e: deps ## Test the chart in a Kubernetes of one node on this machine: a volume's whole life (root)
	@echo '==> test-e2e'
	HOSTLOOP_E2E_NODES=1 tests/e2e/local whole-life

# SIDECAR_BIN=dir: the default layout, with the csi-node-driver-registrar and the livenessprobe in dir.
e2e-local: deps ## Test in a Kubernetes of three nodes on this machine; KEEP=1 leaves it up, CASES='a b' chooses (root)
	@echo '==> e2e-local'
	KEEP='$(KEEP)' SIDECAR_BIN='$(abspath $(SIDECAR_BIN))' tests/e2e/local $(CASES)

e2e-kind: ## Test the same on kind, its nodes beside each other, and the README's quick start (Docker, or podman as root)
	@echo '==> e2e-kind'
	KEEP='$(KEEP)' SIDECAR_BIN='$(abspath $(SIDECAR_BIN))' HOSTLOOP_E2E_PROVIDER=kind tests/e2e/local $(CASES)
	@[[ -n '$(CASES)' ]] || { tests/e2e/kind-neighbours && tests/e2e/kind-disks && tests/e2e/quick-start; }

e2e-conformance: deps ## Run Kubernetes' storage suite in a Kubernetes on this machine; KEEP=1, SPECS='a b' as above (root)
	@echo '==> e2e-conformance'
	tests/e2e/build conformance
	HOSTLOOP_E2E_VALUES=testdriver/values.yaml KEEP='$(KEEP)' tests/e2e/local --with ./conformance --images $(SPECS)

bench: ## Measure a volume's life and its copies (root, 20 GiB free)
	@echo '==> bench'
	$(CARGO) bench --locked --bench lifecycle
	$(CARGO) bench --locked --bench copies

doc: ## Build the documentation of the code; a broken link is an error
	@echo '==> doc'
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --locked --no-deps --document-private-items

clean: ## Remove what was built, downloaded and reported
	@echo '==> clean'
	$(CARGO) clean
	rm -rf .cache

deps: ## Install what building and running needs, if it is missing
	@echo '==> deps'
	scripts/install-deps

deps-test: ## Install what the checks need too, if it is missing
	@echo '==> deps-test'
	scripts/install-deps --test
