# The targets are short on purpose: what they run can be typed by hand. Contributors run `make test`. CI runs
# `make test-all`: `make test`, and then the rest, each test once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
# The steps of `test` are in an order, cheap first; cargo uses all processors by itself.
.NOTPARALLEL:
.DEFAULT_GOAL := help

CARGO ?= cargo
# The shell reads it, between double quotes: make would take a path with a blank for two.
TARGET_DIR = $${CARGO_TARGET_DIR:-target}
# What scripts/install-deps builds is found first.
WITH_TOOLS := PATH="$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hostloop/tools/bin:$$PATH"
# The driver that Cargo builds for the tests. `make demo` serves with it, so `make test` does not compile it again.
DRIVER = "$(TARGET_DIR)/debug/hostloop"
# Tests on the fake kernel that take seconds each; `check` and `test` leave them to `test-rest`.
SLOW := walk:: pull::ends:: pull::left_out:: pull::permits:: pull::breaks:: pull::streams:: list_pages:: space_promises:: beside:: \
  pull::trees:: pull::standby:: pull::ended_updates:: removals::whole left_frozen::staging given_limit::a_call_that_is_cut_off \
  metadata::base turns::abandoned expiry::the_end list_volumes::a_thousand managed_pools::devices::a_device_that_goes_away \
  managed_pools::refusals::a_mkfs modify_volume::a_failed_look node_stage_volume::image::offline_growth
# Unit tests that lead a move through each loss in turn, and take seconds each; `check` and `test` leave them to `test-rest`.
SLOW_UNIT := whole::whatever_ends whole::whatever_a_node whole::a_move_can_be_cancelled_after many::a_node_gets many::an_interrupted
UNIT := --lib --bins --example man --test protocol --test layers
QUICK := --test contract --test csi
# On the real kernel: each kind of volume, each RPC, and what the traits of the kernel promise. `test-root-rest` has the others.
QUICK_ROOT := life:: every_rpc:: selftest:: inline:: modify_volume:: group_snapshot::filesystems health::volumes readonly:: flags:: thick::thick_ext4 \
  unpublish_volume::deleting unpublish_volume::targets unpublish_volume::a_volume unpublish_volume::files restart::volumes_in_use pull::a_directory \
  given_limit::a_directory_gets_a_limit_on_x managed_pools::a_whole_life in_use::a_killed mount_options::each_word \
  controller_publish_volume:: metadata::allocated_metadata_in_a_pool_on_xfs os_contract::loops os_mounts::mounts os_contract::filesystems os_contract::disks
QUICK_SANITY := mount block
TEST := $(CARGO) test --locked
# Tests that wait for the kernel, or for a time to pass, more than they compute: two for each processor.
WAITING := --test-threads $$((2 * $$(nproc)))
# Cargo.toml has test = false for these, so `cargo test` leaves them out, and --all-targets does, too.
ROOT_TARGETS := --test root --test disks --test powercut
# What runs for hours gets a build of its own, which has every check and runs twice as fast.
LONG_TEST := $(TEST) --profile exhaustive
AS_ROOT = @if (( $$(id -u) != 0 )); then echo '$@ mounts filesystems and attaches loop devices: run it as root' >&2; exit 1; fi

.PHONY: left-to-root help prepare build driver demo check fix test test-all test-rest deps deps-quick deps-test go-tools fmt deny advisories clippy clippy-quick clippy-rest quick-build test-build rest-build test-unit test-unit-quick test-quick test-walk-quick test-slow test-csi test-root test-root-quick test-root-rest test-sanity test-sanity-quick test-sanity-rest sanity-release test-disks lying-disks test-vm test-vm-rest test-upgrade test-chart test-deploy test-workflows test-e2e e2e-local e2e-kind e2e-conformance bench doc clean walk simulate model soak kernel-walk mutants mutants-diff test-fuzz fuzz sanitize

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

prepare: ## Prepare a fresh machine: install what building and testing need, say what else is missing
	@echo '==> prepare'
	scripts/prepare

build: ## Build the driver, release profile
	@echo '==> build'
	$(CARGO) build --package hostloop --release --locked

# In the profile of the tests, which compiles faster than the release profile, and with the features of dependencies that
# the tests enable, so that `make test` compiles none of it again.
driver:
	@echo '==> driver: building hostloop and what it needs: two to four minutes on two processors, if nothing is compiled yet'
	$(CARGO) build --locked --package hostloop --package hostloop-test-features

demo: deps driver ## Build the driver and watch it serve volumes on this machine (root)
	@echo '==> demo'
	$(DRIVER) selftest

check: ## While you work: formatting, lints, unit tests, and the quick ones on the fake kernel (no root)
	@scripts/steps fmt quick-build clippy+test-unit-quick+test-quick

fix: ## Format the code, and mend what the lints can mend
	@echo '==> fix'
	$(CARGO) clippy --fix --workspace --allow-dirty --allow-staged --all-targets --all-features --locked
	$(CARGO) clippy --fix $(ROOT_TARGETS) --allow-dirty --allow-staged --locked
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path tests/mutants/Cargo.toml

TEST_STEPS := deps-quick fmt test-build+go-tools clippy-quick+test-unit-quick+test-quick+test-walk-quick+test-root-quick test-sanity-quick+test-chart
NEED_ROOT := test-root-quick test-sanity-quick
# The real kernel is waited for, the fake one computes: they share the processors well. The emulated machine has one processor.
REST_STEPS := deps-test doc+deny+test-workflows clippy-rest rest-build test-slow+test-root-rest \
  test-vm+test-sanity-rest,test-disks,test-fuzz,test-e2e,test-deploy+mutants-diff

test: ## Before a pull request: lints, each RPC on the fake and the real kernel, csi-sanity, the chart (root, or what works without)
	@if (( $$(id -u) == 0 )); then scripts/steps $(TEST_STEPS) && echo '==> all checks passed; the rest is make test-rest'; else \
	  scripts/steps --left-out '$(NEED_ROOT)' 'needs root' $(TEST_STEPS) && make --no-print-directory left-to-root && \
	  echo '==> all that runs without root passed; the rest is make test as root, and make test-rest'; fi

left-to-root:
	@printf '==> as root: %s more tests, and csi-sanity: sudo env "PATH=$$PATH" make test\n' \
	  "$$($(TEST) --test root -- --list $(QUICK_ROOT) 2>/dev/null | grep -c ': test$$')"

test-rest: ## What test leaves out: walks, all root tests, disks, the emulated machine, fuzzing, mutants, e2e (root)
	@scripts/steps $(REST_STEPS)

test-all: ## Everything, as CI does: test, then test-rest; stop at the first failure; end with a table (root)
	@scripts/steps $(TEST_STEPS) $(REST_STEPS)
	@echo '==> all checks passed'

fmt: ## Check the formatting
	@echo '==> fmt'
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path tests/mutants/Cargo.toml --check

deny: deps-test ## Check the dependencies: duplicates, licences, sources
	@echo '==> deny'
	$(WITH_TOOLS) $(CARGO) deny --workspace --log-level warn check bans licenses sources

# Not a part of `test`: what is known changes without a change here, and it takes the network to know.
advisories: deps-test ## Check the dependencies for known vulnerabilities (network)
	@echo '==> advisories'
	$(WITH_TOOLS) $(CARGO) deny --workspace check advisories

clippy: ## Lint everything; a warning is an error
	@echo '==> clippy'
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings
	$(CARGO) clippy $(ROOT_TARGETS) --locked -- -D warnings

# Without the fuzz targets, for which libFuzzer has to be compiled.
clippy-quick:
	@echo '==> clippy-quick'
	$(CARGO) clippy --workspace --exclude hostloop-fuzz --all-targets --all-features --locked -- -D warnings
	$(CARGO) clippy $(ROOT_TARGETS) --locked -- -D warnings

clippy-rest:
	@echo '==> clippy-rest'
	$(CARGO) clippy --package hostloop-fuzz --all-targets --all-features --locked -- -D warnings

test-build:
	@echo '==> test-build: four to six minutes on two processors, if nothing is compiled yet'
	$(TEST) --no-run $(UNIT) $(QUICK) --test root

rest-build:
	@echo '==> rest-build'
	$(TEST) --no-run --test cluster --test model --test simulation --test disks --test powercut

# Builds what test-sanity and test-chart need, unless it exists.
go-tools:
	@echo '==> go-tools: csi-sanity, helm and others: five minutes beside the build of the tests, if nothing is compiled yet'
	tests/sanity/run --build
	tests/deploy/tools

test-unit: ## Test the parts, the protocol file and the layering
	@echo '==> test-unit'
	$(TEST) $(UNIT)

test-unit-quick:
	@echo '==> test-unit-quick'
	$(TEST) $(UNIT) -- $(addprefix --skip ,$(SLOW_UNIT))

# What `check` runs is built at once, and linted while it runs: the lints use one processor.
quick-build:
	@echo '==> quick-build'
	$(TEST) --no-run $(UNIT) $(QUICK)

test-quick: ## Test each RPC on the fake kernel, without the walk and without what takes seconds
	@echo '==> test-quick'
	$(TEST) $(QUICK) -- $(addprefix --skip ,$(SLOW))

# A small part of the walk, which `test` takes and `check` leaves out.
test-walk-quick:
	@echo '==> test-walk-quick'
	WALK='ext4: stage;block: create;directory: delete' HOSTLOOP_WALK_SHARE=10 $(TEST) --test csi -- walk::every_call_

test-slow: ## Test what test-quick and test-unit-quick leave out: faults and kills at every step, the model, the cluster, the simulation
	@echo '==> test-slow'
	$(TEST) --lib -- $(SLOW_UNIT)
	$(TEST) --test csi -- $(WAITING) $(SLOW)
	$(TEST) --test model --test cluster --test simulation

test-csi: ## Test the RPCs on the fake kernel, with faults and kills at every step, and the cluster
	@echo '==> test-csi'
	$(TEST) --test contract --test csi --test model --test cluster --test simulation

walk: ## End and fail every step of every call on the fake kernel, of which test-csi takes a part
	@echo '==> walk'
	HOSTLOOP_WALK_SHARE=1 HOSTLOOP_SHARE=1 $(LONG_TEST) --test csi -- walk:: pull:: removals:: --nocapture

test-fuzz: deps-test ## Run the fuzz targets on their corpora, and a minute on new inputs
	@echo '==> test-fuzz'
	$(CARGO) test --locked -p hostloop-fuzz --lib
	scripts/fuzz --seconds 60

SECONDS = 3600
fuzz: deps-test ## Fuzz for SECONDS in all, an hour if nothing is said; TARGETS='a b' chooses
	@echo '==> fuzz'
	scripts/fuzz --seconds '$(SECONDS)' $(TARGETS)

# SEEDS=n: so many, from FROM on. SEED=n: one, with all that happens in it.
SEEDS ?= 10000
FROM ?= 0
simulate: ## Test a simulated cluster; SEEDS=n runs so many seeds from FROM=n on, SEED=n shows one
	@echo '==> simulate'
ifdef SEED
	HOSTLOOP_SIMULATION_SHOW=1 HOSTLOOP_SIMULATION_SEED='$(SEED)' $(TEST) --test simulation -- --exact seeds::one --ignored --nocapture
else
	HOSTLOOP_SIMULATION_SEEDS='$(SEEDS)' HOSTLOOP_SIMULATION_FROM='$(FROM)' $(LONG_TEST) --test simulation -- --exact seeds::many --ignored --nocapture
endif

test-root: deps ## Test on the real kernel (root)
	@echo '==> test-root'
	$(AS_ROOT)
	$(TEST) --test root -- $(WAITING)

test-root-quick: deps
	@echo '==> test-root-quick'
	$(AS_ROOT)
	$(TEST) --test root -- $(WAITING) $(QUICK_ROOT)

test-root-rest: deps
	@echo '==> test-root-rest'
	$(AS_ROOT)
	$(TEST) --test root -- $(WAITING) $(addprefix --skip ,$(QUICK_ROOT))

test-disks: deps-test ## Test with disks that lie, fail and hang; HOSTLOOP_DISKS_SEED=N repeats what was lost (root)
	@echo '==> test-disks'
	$(AS_ROOT)
	$(TEST) --test disks -- --nocapture --test-threads 1

# HOSTLOOP_DISKS_PART=N takes each Nth flush only, HOSTLOOP_DISKS_SECONDS=N ends after that time.
lying-disks: deps-test ## Lose the power between every two flushes of a recorded load (root, an hour)
	@echo '==> lying-disks'
	$(LONG_TEST) --test disks -- --ignored --exact lying::power_is_lost_at_every_flush --nocapture

# In a mount namespace of its own: whoever makes one meanwhile would copy the mounts, and so keep their devices.
kernel-walk: deps ## End and fail every system call on the real kernel; KERNEL_WALK='words;words' chooses (root, hours)
	@echo '==> kernel-walk'
	unshare --mount $(LONG_TEST) --test root kernel_walk::every_call -- --ignored --nocapture

# SAMPLE=n: so many of each module, chosen by SEED; SHARD=3/50: the third of fifty parts; FILE=x: of files with this in their path.
# ONLY=file: those that it names; FIRST=1: without what takes long; LAST=1: with that only.
# KERNEL=1: with the tests on the real kernel, in a mount namespace of its own (see `kernel-walk`).
mutants: ## Change the code in many ways, and see that a test fails for each; MODULE=driver SAMPLE=100 (root for kernel/linux; hours)
	@echo '==> mutants'
	scripts/install-deps --mutants
	$(CARGO) build --quiet --locked --manifest-path tests/mutants/Cargo.toml --target-dir "$(TARGET_DIR)/mutants-tool"
	$(WITH_TOOLS) $(if $(KERNEL),unshare --mount) "$(TARGET_DIR)/mutants-tool/debug/mutants" $(addprefix --module ,$(MODULE)) $(addprefix --file ,$(FILE)) \
	  $(addprefix --sample ,$(SAMPLE)) $(addprefix --seed ,$(SEED)) $(addprefix --shard ,$(SHARD)) $(addprefix --minutes ,$(MINUTES)) \
	  $(addprefix --only ,$(ONLY)) $(if $(FIRST),--first) $(if $(LAST),--last) $(if $(KERNEL),--kernel) $(addprefix --each ,$(EACH))

mutants-diff: ## The same with the lines that differ from BASE=rev, 60 mutants and five minutes at most
	@echo '==> mutants-diff'
	$(WITH_TOOLS) BASE='$(BASE)' SEED='$(SEED)' tests/mutants/diff "$(TARGET_DIR)"

# Stable Rust has the runtime, and hides the flag. A --target keeps build scripts and macros without it.
SANITIZE = RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(TEST) --target "$$(rustc -vV | sed -n 's/^host: //p')" --target-dir "$(TARGET_DIR)/sanitized"
sanitize: deps ## Run the unit tests, and what calls the kernel past the libraries, with AddressSanitizer (root)
	@echo '==> sanitize'
	$(SANITIZE) --lib
	$(SANITIZE) --test root -- os_contract:: os_mounts:: quotas:: os_copies:: copy_tree:: metadata:: freeze::

test-sanity: deps-quick driver ## Run csi-sanity in each mode of the driver (root)
	@echo '==> test-sanity'
	tests/sanity/run --binary $(DRIVER)

test-sanity-quick: driver
	@echo '==> test-sanity-quick'
	tests/sanity/run --binary $(DRIVER) $(QUICK_SANITY)

test-sanity-rest: driver
	@echo '==> test-sanity-rest'
	tests/sanity/run --binary $(DRIVER) $$(tests/sanity/run --list | grep -vx $(addprefix -e ,$(QUICK_SANITY)))

# `make test` has the debug build. A release is optimised, and has no checks of overflows.
sanity-release: deps-quick build ## The same with the release driver (root)
	@echo '==> sanity-release'
	tests/sanity/run --binary "$(TARGET_DIR)/release/hostloop"

# Of the tests on the real kernel, what other machines may lack: project quotas of ext4 and xfs, ext4 that grows while it is
# mounted, and the contract of the kernel; and power cuts.
VM_ROOT := os_mounts:: quotas:: at_the_limit:: given_limit:: life:: thick::
# They take eight minutes and two.
VM_SLOW := os_contract::every_pool_filesystem old_quotas::the_kernel
test-vm: deps-test driver ## Test on Debian's kernel in an emulated machine what others may lack, and cut its power
	@echo '==> test-vm'
	tests/vm/complaints
	tests/vm/run-test
	tests/vm/root os_contract:: $(VM_ROOT) --skip a_failed_sync $(addprefix --skip ,$(VM_SLOW))
	tests/vm/power-cut --binary $(DRIVER) --rounds 2

# `test-root` has these, too, and without project quotas those of old quotas check nothing there. The complaints that some
# provoke are excused only in a machine of their own.
test-vm-rest: deps-test driver ## Test the rest of the real kernel's tests on Debian's kernel in an emulated machine (half an hour)
	@echo '==> test-vm-rest'
	tests/vm/root removals:: in_use::every_kind os_copies:: freeze:: group_snapshot:: qgroups:: --skip removals::a_subvolume --skip removals::a_snapshot
	tests/vm/root --expect 'I/O error' os_contract::a_failed_sync
	tests/vm/root --expect 'deleting default subvolume' removals::a_subvolume removals::a_snapshot
	tests/vm/root $(VM_SLOW)
	tests/vm/power-cut --binary $(DRIVER) --rounds 10

# Other drivers take minutes to build, and releases are in the history, which a clone may lack: not a part of `test`.
test-upgrade: deps ## Test upgrades from each release and back, and to the next format of the state file (root; builds them)
	@echo '==> test-upgrade'
	tests/upgrade/run

# Ten times as many on the fake kernel, which is quick, as on the real one. HOSTLOOP_SEED=n makes the same choices again.
CALLS ?= 100000
model: deps ## Let many clients make CALLS calls on the fake kernel, a tenth of them on the real one; a model explains each (root)
	@echo '==> model'
	CALLS=$(CALLS) $(LONG_TEST) --test model -- --ignored --nocapture
	CALLS=$$(( $(CALLS) / 10 )) $(LONG_TEST) --test root many_clients:: -- --ignored --nocapture

soak: deps build ## Keep the release driver under the load of many clients for MINUTES (30) and see that it does not grow (root)
	@echo '==> soak'
	MINUTES=$(or $(MINUTES),30) HOSTLOOP_SOAK_DRIVER="$$(realpath "$(TARGET_DIR)/release/hostloop")" $(TEST) --test root soak:: -- --ignored --nocapture

test-chart: driver ## Check the chart and the manifests of deploy/ (Go; no cluster)
	@echo '==> test-chart'
	tests/deploy/run --driver $(DRIVER)

test-deploy: ## Check the scripts that install and publish it, with stand-ins for what they call
	@echo '==> test-deploy'
	tests/e2e/kind-test
	tests/e2e/cases-test
	tests/e2e/build-test
	tests/deploy/release-test

test-workflows: deps-test ## Check the workflows of .github: their syntax, that what they run is there, and the table of steps (Go)
	@echo '==> test-workflows'
	tests/workflows/run
	tests/workflows/builds
	tests/workflows/run-test
	tests/workflows/commits-test
	tests/workflows/steps-test

test-e2e: deps driver ## Test the chart in a Kubernetes of three nodes on this machine: a volume's whole life, and what needs other nodes (root)
	@echo '==> test-e2e'
	tests/e2e/power-test
	HOSTLOOP_E2E_BINARY="$$(realpath $(DRIVER))" tests/e2e/local whole-life immediate other-node spread move move-pool

# As with TARGET_DIR. What a caller of make sets is in the environment.
SIDECARS = $${SIDECAR_BIN:+$$(realpath -m -- "$$SIDECAR_BIN")}
# SIDECAR_BIN=dir: the default layout, with the csi-node-driver-registrar and the livenessprobe in dir.
e2e-local: deps ## Test in a Kubernetes of three nodes on this machine; KEEP=1 leaves it up, CASES='a b' chooses (root)
	@echo '==> e2e-local'
	KEEP='$(KEEP)' SIDECAR_BIN="$(SIDECARS)" tests/e2e/local $(CASES)

e2e-kind: ## Test the same on kind, its nodes beside each other, and the README's quick start (Docker, or podman as root)
	@echo '==> e2e-kind'
	KEEP='$(KEEP)' SIDECAR_BIN="$(SIDECARS)" HOSTLOOP_E2E_PROVIDER=kind tests/e2e/local $(CASES)
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

deps-quick:
	@echo '==> deps-quick'
	scripts/install-deps --quick

deps-test: ## Install what the checks need too, if it is missing
	@echo '==> deps-test'
	scripts/install-deps --test
