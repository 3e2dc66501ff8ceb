# Everything a developer or a CI job does starts here; `make help` lists it. A fresh machine needs Go 1.26, gcc (for the
# race detector), git, make and bash. All else is built from source, once, below .tools/bin.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

# Tools. The version is part of the path, so raising one here installs it again and nothing else does.
GOLANGCI_LINT := .tools/bin/golangci-lint-v2.15.0/golangci-lint
BUF           := .tools/bin/buf-v1.73.0/buf
GEN_GO        := .tools/bin/protoc-gen-go-v1.36.12/protoc-gen-go
GEN_CONNECT   := .tools/bin/protoc-gen-connect-go-v1.21.1/protoc-gen-connect-go
GEN_OPENAPI   := .tools/bin/protoc-gen-openapiv2-v2.33.0/protoc-gen-openapiv2
NFPM          := .tools/bin/nfpm-v2.45.2/nfpm
CYCLONEDX     := .tools/bin/cyclonedx-gomod-v1.10.0/cyclonedx-gomod
GENERATORS    := $(BUF) $(GEN_GO) $(GEN_CONNECT) $(GEN_OPENAPI)

# Folders that own a schema: each has buf.yaml, buf.gen.yaml and proto/ in it.
SCHEMAS := fsm rpc

# Paths are trimmed in everything that is built, so that tests, lint and the binary share what they compile.
export GOFLAGS := -trimpath $(filter-out -trimpath,$(value GOFLAGS))

# What may be set from outside: make test TESTFLAGS='-run Conservation -v'
GO           ?= go
CLIENT       ?=
PACKAGES     ?= ./...
TESTFLAGS    ?=
BENCH        ?= .
BENCHTIME    ?= 1s
FUZZTIME     ?= 60s
FLIPS        ?= 1000000
# Schemas must stay compatible with this commit: the last release or, before the first one, the commit before this.
# `make lint AGAINST=` skips the comparison, for a break that is meant.
AGAINST      ?= $(shell git describe --tags --abbrev=0 HEAD^ 2>/dev/null || git rev-parse --quiet --verify HEAD^ 2>/dev/null)

# Habits are held from this commit on: the last release or, before the first one, the one that a file names.
SINCE        ?= $(shell git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || cat .ci/since)

# Fails where a commit is not here: a check that has nothing to compare with would pass everything.
need_commit = git cat-file -e "$(1)^{commit}" 2>/dev/null || { \
	echo "$@: the commit $(2) is not here ('$(1)'): fetch the whole history and its tags (git fetch --unshallow --tags)" >&2; exit 1; }

# A folder of generated files as it would be made now, for check-generate.
FRESH := bin/generated

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: build agents ## build quotad and show nine agents sharing one API key on a three-node cluster
	bin/quotad demo $$(test ! -d $(AGENTS)/node_modules || echo --node $(AGENTS))

# What one agent of the demo calls with, where npm can fetch it. Without it that agent uses the Go client.
AGENTS     := bin/agents
AGENTS_NPM := cmd/quotad/internal/lab/demo/node

.PHONY: agents
agents:
	@mkdir -p $(AGENTS) && cp $(AGENTS_NPM)/package.json $(AGENTS_NPM)/package-lock.json $(AGENTS)
	@test $(AGENTS)/node_modules -nt $(AGENTS_NPM)/package-lock.json || { \
		cd $(AGENTS) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error --fetch-retries 0 && touch node_modules; \
	} > $(AGENTS)/npm.log 2>&1 || { rm -rf $(AGENTS)/node_modules; echo "npm installs nothing ($(AGENTS)/npm.log): no agent calls by Node"; }

# Named outright, so that no GOFLAGS of the machine leaves the commit out. Sources without a repository build as well.
.PHONY: build
build: ## build bin/quotad
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=auto -o bin/quotad ./cmd/quotad

# What computes and does nothing else: the state machine, fleets in virtual time, the model of the rules, and clusters in virtual time. The
# race detector takes most of their time (fsm: 27 s without it, 190 s with it) and sees one goroutine, in clusters those that the other
# packages' nodes have too. So they run without it here, except the tests that share something between goroutines, and with it in
# test-long; and the state machine runs with it in the nodes of all other packages' tests. They run beside the others, which mostly wait, and
# yield to them; two at a time, so that they leave no processor idle once the others have ended.
COMPUTING := /(fsm|lab/plan|jepsen/model|jepsen/sim)$$
SHARING   := TestFrozenStateStandsStill|TestScenarios/s3-retry-loop

# These wait longest, so they begin first: what comes last has the processors for itself and leaves them idle.
WAITING := /(rpc|raftnode|raftnode/logstore|cmd/quotad|client/gateway)$$

# What runs the commands of sessions and documents; their nodes are built with the race detector.
TEST_COMMAND := bin/test/quotad

# Three packages at a time, also on two processors, and four parallel tests in each: many wait for time to pass, and Go would run one for
# each processor. A program that was built with the race detector waits a second at its end for other threads' reports, if it is not told
# otherwise.
.PHONY: test
test: export GORACE ?= atexit_sleep_ms=50
test: export QUOTAD_TEST_COMMAND ?= $(abspath $(TEST_COMMAND))
test: ## all quick tests, with the race detector where it matters (minutes)
	@CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o $(TEST_COMMAND) ./cmd/quotad; \
	all="$$($(GO) list $(PACKAGES))"; \
	computing="$$(grep -E '$(COMPUTING)' <<<"$$all" | xargs || true)"; \
	waiting="$$(grep -E '$(WAITING)' <<<"$$all" | sort -r | xargs || true)"; \
	others="$$(grep -vE '$(COMPUTING)|$(WAITING)' <<<"$$all" | xargs || true)"; \
	first=; go_test() { $$first $(GO) test -short -timeout 15m "$$@" || failed=1; }; \
	if [ -n "$$computing" ]; then \
		( first=nice; go_test -p 2 $(TESTFLAGS) $$computing; go_test -p 1 -race $(TESTFLAGS) -run '$(SHARING)' $$computing; \
			[ -z "$${failed:-}" ] ) > bin/test/computing.out & beside=$$!; \
	fi; \
	if [ -n "$$waiting$$others" ]; then go_test -race -p 3 -parallel 4 $(TESTFLAGS) $$waiting $$others; fi; \
	if [ -n "$$computing" ]; then wait $$beside || failed=1; cat bin/test/computing.out; fi; \
	[ -z "$${failed:-}" ]

.PHONY: test-long
test-long: ## every test, the long ones too, with the race detector
	$(GO) test -race -count 1 -timeout 60m $(TESTFLAGS) $(PACKAGES)

.PHONY: conformance
conformance: ## test a client of quotad by its driver, CLIENT='python3 driver.py'; the Go client without one
	$(GO) run ./client/conformance $(CLIENT)

# The providers' own clients, in the versions of these files and of the distribution. They are unpacked, not installed.
CLIENTS      := $(abspath bin/clients)
CLIENTS_DEBS := gh python3-requests python3-urllib3 python3-chardet python3-certifi python3-idna python3-httpx python3-httpcore \
	python3-h11 python3-anyio python3-sniffio python3-rfc3986

.PHONY: test-clients
test-clients: ## test the gateway with SDKs from npm and Go's proxy, and gh and Python's clients from Debian, fetched into bin/clients
	mkdir -p $(CLIENTS)/debian
	cp client/gateway/testdata/clients/*.* $(CLIENTS)
	cd client/gateway/testdata/clients/go && $(GO) build -o $(CLIENTS)/ ./...
	cd $(CLIENTS) && npm ci --ignore-scripts --no-audit --no-fund
	cd $(CLIENTS) && apt-get download $(CLIENTS_DEBS) && for package in *.deb; do dpkg -x "$$package" debian; done
	QUOTAD_CLIENTS=$(CLIENTS) $(GO) test -count 1 -timeout 10m $(TESTFLAGS) -run '^TestClients_' -v ./client/gateway
	QUOTAD_AGENTS=$(CLIENTS) $(GO) test -count 1 $(TESTFLAGS) -run '^TestForeignCaller_' -v ./cmd/quotad/internal/lab/demo
	QUOTAD_CLIENTS=$(CLIENTS) $(GO) test -count 1 -timeout 10m $(TESTFLAGS) -run '^TestClients_' -v ./cmd/quotad/internal/lab/live

.PHONY: test-ci
test-ci: # tests of what ./... passes over: dotted folders and other modules
	$(GO) test -count 1 ./.ci/count ./.ci/links ./.ci/prose ./.ci/subjects
	cd $(BENCH_TOOL) && $(GO) test -count 1 ./...

# Never from the cache, which does not see that the store is another one.
.PHONY: test-wal
test-wal: # the tests of nodes with their log in the other store
	QUOTAD_TEST_LOG_STORE=wal $(GO) test -race -short -count 1 -timeout 8m $(TESTFLAGS) ./raftnode/...

.PHONY: test-flips
test-flips: ## flip every bit of the log stores' pages in use, and open each (hours)
	QUOTAD_FLIPS=$(FLIPS) $(GO) test -count 1 -timeout 12h $(TESTFLAGS) -run TestPageFlips_AreFound -v ./raftnode/logstore

.PHONY: all
all: lint check-generate test test-wal test-ci ## lint, check-generate and test: what must pass before a commit

.PHONY: lint
lint: lint-layout lint-go lint-windows lint-errors lint-schema lint-docs lint-subjects ## code style, import rules, layout, schemas and their compatibility, links and English of docs, subjects of commits

.PHONY: lint-go
lint-go: $(GOLANGCI_LINT)
	$(GOLANGCI_LINT) config verify
	$(GOLANGCI_LINT) run $(PACKAGES) ./.ci/count ./.ci/links ./.ci/prose ./.ci/subjects
	cd $(BENCH_TOOL) && $(abspath $(GOLANGCI_LINT)) run ./...

# The release has binaries of it, and no test runs there. The cache keeps what was built.
.PHONY: lint-windows
lint-windows: # build the binary for Windows
	GOOS=windows GOARCH=amd64 CGO_ENABLED=0 $(GO) build -buildvcs=false -o bin/quotad.exe ./cmd/quotad

# Errors are matched by type: a text is for people and changes. No linter has this rule, a pattern is good enough.
.PHONY: lint-errors
lint-errors:
	@grep -rnE --include='*.go' --exclude='*_test.go' --exclude-dir=.tools \
		'strings\.(Contains|HasPrefix|HasSuffix|EqualFold)\(.*\.Error\(\)|\.Error\(\) *[!=]= ' . || found=$$?; \
	case "$${found:-0}" in \
		1) ;; \
		0) echo "match errors by type (errors.Is, errors.AsType), not by text" >&2; exit 1 ;; \
		*) echo "lint-errors: grep failed" >&2; exit 1 ;; \
	esac

.PHONY: lint-schema
lint-schema: $(BUF)
	@for schema in $(SCHEMAS); do \
		echo "buf lint $$schema"; \
		$(BUF) lint $$schema; \
		if [ -z "$(AGAINST)" ] && [ "$(origin AGAINST)" != file ]; then \
			echo "buf breaking $$schema: not compared, as AGAINST= says"; \
			continue; \
		fi; \
		$(call need_commit,$(AGAINST),to compare schemas with); \
		if git cat-file -e "$(AGAINST):$$schema/buf.yaml" 2>/dev/null; then \
			echo "buf breaking $$schema, against $(AGAINST)"; \
			git archive "$(AGAINST)" $$schema | $(BUF) breaking $$schema --against "-#format=tar,subdir=$$schema"; \
		else \
			echo "buf breaking $$schema: $(AGAINST) has no such schema"; \
		fi; \
	done

.PHONY: lint-docs
lint-docs:
	$(GO) run ./.ci/links
	$(GO) run ./.ci/prose

.PHONY: lint-subjects
lint-subjects:
	@$(call need_commit,$(SINCE),since which subjects are checked)
	$(GO) run ./.ci/subjects $(SINCE)

# A file that a tool or a test left at the top is easily added with the others.
LAYOUT := .ci .editorconfig .gitattributes .github .gitignore .golangci.yml .tools CHANGELOG.md CONTRIBUTING.md LICENSE Makefile \
	README.md SECURITY.md client cmd docs fsm go.mod go.sum jepsen raftnode rpc

.PHONY: lint-layout
lint-layout: # fail if the top level has another file or directory
	@top="$$(git ls-files | cut -d/ -f1 | sort -u | tr '\n' ' ')" && \
	for name in $$top; do \
		case " $(LAYOUT) " in *" $$name "*) ;; *) echo "lint-layout: what is $$name for, at the top level?" >&2; exit 1 ;; esac; \
	done

.PHONY: format
format: $(GOLANGCI_LINT) ## format the code
	$(GOLANGCI_LINT) fmt $(PACKAGES)
	cd $(BENCH_TOOL) && $(abspath $(GOLANGCI_LINT)) fmt ./...

.PHONY: generate
generate: $(GENERATORS) ## generate fsm/logpb, rpc/quotav1 and rpc/openapi from their schemas
	@for schema in $(SCHEMAS); do $(call generate_into,$$schema); done

.PHONY: check-generate
check-generate: $(GENERATORS) ## fail if generated code does not fit its schema
	@rm -rf $(FRESH); \
	for schema in $(SCHEMAS); do \
		$(call generate_into,$(FRESH)/$$schema); \
		for made in $(FRESH)/$$schema/*; do \
			diff -r "$$made" "$$schema/$${made##*/}" || { echo "stale: run make generate and commit" >&2; exit 1; }; \
		done; \
	done; \
	echo "generated code is up to date"

.PHONY: bench
bench: build ## benchmarks of quotad; BENCH and BENCHTIME choose (docs/performance.md says how to read them)
	bin/quotad bench
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout 60m $(TESTFLAGS) ./fsm/... ./raftnode/... ./client/...

# make bench-gateway BENCHFLAGS='--rate 500 --rounds 7 --duration 10s'
.PHONY: bench-gateway
bench-gateway: build ## measure what the gateway adds to a call, compared with a plain reverse proxy (on a machine that does nothing else)
	bin/quotad bench gateway $(BENCHFLAGS)

# Compared with peers and with the past: a program in a module of its own, so that others' clients are no part of quotad's.
BENCH_TOOL    := cmd/quotad/internal/lab/bench/tool
BENCH_RESULTS ?= bin/bench-peers.json
# make bench-peers BENCHFLAGS='--rounds 5 --duration 10s'
BENCHFLAGS    ?=

.PHONY: bench-tool
bench-tool:
	cd $(BENCH_TOOL) && CGO_ENABLED=0 $(GO) build -trimpath -o $(abspath bin)/quotad-bench .

# Debian's packages, without starting their services. Needs root where they are missing.
.PHONY: peers
peers: # install etcd and Redis
	@for pair in etcd:etcd-server redis-server:redis-server; do \
		command -v "$${pair%%:*}" >/dev/null || missing="$${missing:-} $${pair##*:}"; \
	done; \
	if [ -n "$${missing:-}" ]; then \
		export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive; \
		apt-get install -y --no-install-recommends $$missing || { apt-get update && apt-get install -y --no-install-recommends $$missing; }; \
	fi

.PHONY: bench-peers
bench-peers: build bench-tool peers ## measure quotad compared with etcd and Redis, in one run (nearly an hour, on a machine that does nothing else)
	bin/quotad-bench run --results $(BENCH_RESULTS) --commit "$$(git rev-parse --short HEAD)" $(BENCHFLAGS)

.PHONY: bench-peers-report
bench-peers-report: bench-tool ## write the results of bench-peers into docs/performance-tables.md and docs/scaling.md
	bin/quotad-bench report --results $(BENCH_RESULTS)

.PHONY: bench-check
bench-check: bench-tool ## say which benchmarks became slower than the stored ratios (AGAINST_DIR=DIR: than in another checkout, run in turn)
	bin/quotad-bench check $(if $(AGAINST_DIR),--against $(AGAINST_DIR)) $(BENCHFLAGS)

.PHONY: bench-hostile
bench-hostile: build bench-tool ## measure what others notice of a hostile caller (two processors)
	bin/quotad-bench hostile $(BENCHFLAGS)

.PHONY: bench-failover
bench-failover: build bench-tool ## measure how long a killed leader stops the cluster (five minutes)
	bin/quotad-bench failover $(BENCHFLAGS)

.PHONY: bench-baseline
bench-baseline: bench-tool # store what bench-check compares with
	bin/quotad-bench check --update $(BENCHFLAGS)

# The commit of a build that .ci/builds names.
commit_of = $(shell awk '$$1 == "$(1)" { print $$2 }' .ci/builds)
# Builds of other commits, one folder each.
BUILDS    := bin/builds
# The feature level in a source of fsm/levels.
LEVEL     := awk '$$1 == "Newest" { print $$3 }'

# A commit that raises the level cannot name itself: until the next one, there is no build before it to come from and go back to.
.PHONY: check-builds
check-builds: # fail if .ci/builds does not name builds of this level and of another one
	@level="$$($(LEVEL) fsm/levels/levels.go)"; \
	level_of() { git show "$$1:fsm/levels/levels.go" 2>/dev/null | $(LEVEL) || true; }; \
	previous="$$(level_of $(call commit_of,previous))" unfit="$$(level_of $(call commit_of,unfit))"; \
	if [ "$$previous" != "$$level" ] || [ "$$unfit" = "$$level" ]; then \
		echo "this build has feature level $$level; .ci/builds names a previous build of level '$$previous' and an unfit one of '$$unfit':" \
			"name a commit of main of level $$level, and the last one before that level" >&2; \
		exit 1; \
	fi

.PHONY: test-upgrade
test-upgrade: check-builds jepsen-build ## upgrade and downgrade a cluster under load, node by node, from and to the build before (three minutes; Linux, root)
	$(MAKE) $(BUILDS)/$(call commit_of,previous)/quotad $(BUILDS)/$(call commit_of,unfit)/quotad
	bin/jepsen-suite run --dir $(JEPSEN_DIR) --mix upgrade --time 5m --previous $(BUILDS)/$(call commit_of,previous)/quotad \
		--unfit $(BUILDS)/$(call commit_of,unfit)/quotad $(JEPSENFLAGS)

$(BUILDS)/%/quotad:
	@git cat-file -e "$*^{commit}" || { echo "commit $* of .ci/builds is not here: fetch the whole history" >&2; exit 1; }
	rm -rf $(@D)/source
	mkdir -p $(@D)/source
	git archive "$*" | tar -x -C $(@D)/source
	cd $(@D)/source && CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -o ../quotad ./cmd/quotad
	rm -rf $(@D)/source

# What is released. The version is the source's.
VERSION  = $(shell sed -n 's/^const version = "\(.*\)"$$/\1/p' cmd/quotad/internal/cli/version.go)
RELEASE := bin/release

.PHONY: release
release: $(NFPM) $(CYCLONEDX) ## build what is released into bin/release: binaries, sums, bills of materials, man pages, completions, packages
	cmd/quotad/packaging/release $(VERSION) $(RELEASE) $(abspath $(NFPM)) $(abspath $(CYCLONEDX))

.PHONY: test-release
test-release: release ## test bin/release: unpack the package, verify its unit, start its node
	QUOTAD_TEST_RELEASE=$(abspath $(RELEASE)) $(GO) test -count 1 -v ./cmd/quotad/packaging

# The second build begins with an empty build cache: nothing of the first one is in it.
.PHONY: release-check
release-check: release ## build the release twice, and see that both are the same bytes
	rm -rf bin/release-cache
	GOCACHE=$(abspath bin/release-cache) cmd/quotad/packaging/release $(VERSION) bin/release-again $(abspath $(NFPM)) $(abspath $(CYCLONEDX))
	rm -rf bin/release-cache
	diff $(RELEASE)/SHA256SUMS bin/release-again/SHA256SUMS
	@echo "both builds are the same"

# Further flags of the fault suite; JEPSENFLAGS='--seed 3 --proxied' runs a seed again.
JEPSENFLAGS ?=
JEPSEN_DIR  := bin/jepsen

.PHONY: jepsen-build
jepsen-build: build
	$(GO) build -o bin/jepsen-suite ./jepsen

.PHONY: jepsen
jepsen: jepsen-build ## break a cluster of real processes for ten minutes and judge the run (Linux, root)
	bin/jepsen-suite run --dir $(JEPSEN_DIR) --mix default --time 10m --summary $(JEPSEN_DIR).jsonl $(JEPSENFLAGS)

.PHONY: jepsen-short
jepsen-short: jepsen-build # the same for a CI job: one minute of the faults that most runs need
	bin/jepsen-suite run --dir $(JEPSEN_DIR) --mix short --time 60s --seed 1 $(JEPSENFLAGS)

.PHONY: jepsen-long
jepsen-long: jepsen-build ## every mix, direct and proxied, three and five nodes: hours
	for mix in default processes links clocks disks members power-cuts damaged-disks edge gateway; do \
		for flags in "" "--proxied" "--nodes 5"; do \
			bin/jepsen-suite run --dir $(JEPSEN_DIR) --mix $$mix --time 10m --summary $(JEPSEN_DIR).jsonl $$flags $(JEPSENFLAGS) || failed=1; \
		done; \
	done; \
	test -z "$${failed:-}"

.PHONY: jepsen-planted
jepsen-planted: jepsen-build ## build quotad with known defects and see each caught by the checker that must
	bin/jepsen-suite planted

.PHONY: sim-planted
sim-planted: jepsen-build ## the same in the simulation, with the defects that it shows
	bin/jepsen-suite planted --sim

# Seeds of the scenarios, from 1 on.
SCENARIO_SEEDS ?= 200
SCENARIOS      := $(wildcard docs/scenarios/*.yaml)

.PHONY: scenarios
scenarios: build ## run every scenario alone and through quotad, in virtual time, for SCENARIO_SEEDS (200) seeds
	bin/quotad plan check --seeds $(SCENARIO_SEEDS) $(SCENARIOS)

.PHONY: scenarios-page
scenarios-page: build ## the same, and regenerate docs/scenarios.md
	bin/quotad plan check --seeds $(SCENARIO_SEEDS) --write docs/scenarios.md $(SCENARIOS)

# S2 and S9, and what S9 is to be compared with: whole where they end by themselves, else for so long.
REAL_SCENARIOS := $(foreach fleet,s1-nine-agents s2-six-writers s4-six-analysts,docs/scenarios/$(fleet).yaml docs/scenarios/s9-$(fleet).yaml)
REAL_FOR       ?= 5m

.PHONY: scenarios-real
scenarios-real: build ## run S1, S2, S4 and S9 in real time with real processes (five minutes), for docs/scenarios.md
	rm -rf bin/scenarios-real
	bin/quotad plan real --for $(REAL_FOR) --dir bin/scenarios-real --write docs/scenarios.md $(REAL_SCENARIOS)

# Seeds of the simulation, from SEED on.
SEEDS ?= 10000
SEED  ?= 1

.PHONY: sim
sim: ## run SEEDS (10000) clusters in virtual time
	GOGC=400 QUOTAD_SEED=$(SEED) QUOTAD_SIM_SEEDS=$(SEEDS) $(GO) test ./jepsen/sim -run TestSeeds -count 1 -timeout 12h -v | grep -v -e '=== RUN' -e '--- PASS'

.PHONY: fuzz
fuzz: ## fuzz each decoder for FUZZTIME (60s)
	@grep -rlE --include='*_test.go' '^func Fuzz' . | while read -r file; do dirname "$$file"; done | sort -u | \
	while read -r package; do \
		$(GO) test -list '^Fuzz' "$$package" | { grep '^Fuzz' || true; } | while read -r target; do \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null; \
		done; \
	done

.PHONY: cover
cover: ## coverage of the quick tests across packages: bin/cover.html
	@mkdir -p bin
	$(GO) test -short -timeout 8m -coverpkg=./... -coverprofile=bin/cover.out $(TESTFLAGS) $(PACKAGES)
	$(GO) tool cover -html=bin/cover.out -o bin/cover.html
	$(GO) tool cover -func=bin/cover.out | tail -n 1

.PHONY: clean
clean: ## remove what was built (not .tools/bin)
	rm -rf bin

# Generates the schema in the shell's $$schema into a folder.
generate_into = PATH="$(subst $(space),:,$(abspath $(dir $(GENERATORS)))):$$PATH" \
	buf generate $$schema --template $$schema/buf.gen.yaml --output $(1)
space := $(subst x,,x x)

# Tools are modules like any other: the checksum database vouches for what is fetched.
install = GOBIN="$(abspath $(@D))" $(GO) install -trimpath $(1)@$(2)

.tools/bin/golangci-lint-%/golangci-lint:
	$(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$*)

.tools/bin/nfpm-%/nfpm:
	$(call install,github.com/goreleaser/nfpm/v2/cmd/nfpm,$*)

.tools/bin/cyclonedx-gomod-%/cyclonedx-gomod:
	$(call install,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod,$*)

.tools/bin/buf-%/buf:
	$(call install,github.com/bufbuild/buf/cmd/buf,$*)

.tools/bin/protoc-gen-go-%/protoc-gen-go:
	$(call install,google.golang.org/protobuf/cmd/protoc-gen-go,$*)

.tools/bin/protoc-gen-connect-go-%/protoc-gen-connect-go:
	$(call install,connectrpc.com/connect/cmd/protoc-gen-connect-go,$*)

.tools/bin/protoc-gen-openapiv2-%/protoc-gen-openapiv2:
	$(call install,github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv2,$*)
