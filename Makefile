# Everything a developer or CI runs. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# Heavy tools have their versions here and live in .tmp/bin; nothing is taken from the machine but Go itself,
# redis-server (tests), and for compose-* Docker.
BUF_VERSION                := v1.73.0
PROTOC_GEN_GO_VERSION      := v1.36.12
PROTOC_GEN_GO_GRPC_VERSION := v1.6.2
GOLANGCI_VERSION           := v2.15.0
GHZ_VERSION                := v0.93.0
COMPOSE_VERSION            := v5.0.2
CYCLONEDX_VERSION          := v1.10.0

BIN := $(CURDIR)/.tmp/bin
PKG ?= ./...
FUZZTIME ?= 10s
SOAK ?= 10m
SOAK_OPS ?= 10000000
CHAOS ?= 5m
ANSWERS ?= 100000
ROUNDS ?= 200
CHAOS_DIR ?=
CHAOS_SEED ?=
SOAK_SEED ?=
# A race-enabled build compiles everything twice; on two cores the limit is generous.
TIMEOUT ?= 20m

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

##### tools: one stamp file per version, so that a new pin is a new build #####

# $(call tool,BINARY,PACKAGE,VERSION)
define tool
$(BIN)/.$(1)-$(3):
	@mkdir -p $(BIN) && rm -f $(BIN)/.$(1)-v*
	@echo "installing $(1) $(3)"
	@cd $(BIN) && d=$$$$(mktemp -d) && GOFLAGS= GOBIN=$$$$d go install $(2)@$(3) && mv $$$$d/* $(BIN)/$(1) && rmdir $$$$d
	@touch $$@
endef
$(eval $(call tool,buf,github.com/bufbuild/buf/cmd/buf,$(BUF_VERSION)))
$(eval $(call tool,protoc-gen-go,google.golang.org/protobuf/cmd/protoc-gen-go,$(PROTOC_GEN_GO_VERSION)))
$(eval $(call tool,protoc-gen-go-grpc,google.golang.org/grpc/cmd/protoc-gen-go-grpc,$(PROTOC_GEN_GO_GRPC_VERSION)))
$(eval $(call tool,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(GOLANGCI_VERSION)))
$(eval $(call tool,ghz,github.com/bojand/ghz/cmd/ghz,$(GHZ_VERSION)))
$(eval $(call tool,cyclonedx-gomod,github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod,$(CYCLONEDX_VERSION)))
$(eval $(call tool,docker-compose,github.com/docker/compose/v5/cmd,$(COMPOSE_VERSION)))

BUF      := $(BIN)/.buf-$(BUF_VERSION)
PLUGINS  := $(BIN)/.protoc-gen-go-$(PROTOC_GEN_GO_VERSION) $(BIN)/.protoc-gen-go-grpc-$(PROTOC_GEN_GO_GRPC_VERSION)
GOLANGCI := $(BIN)/.golangci-lint-$(GOLANGCI_VERSION)
GHZ      := $(BIN)/.ghz-$(GHZ_VERSION)
COMPOSE  := $(BIN)/.docker-compose-$(COMPOSE_VERSION)
CYCLONE  := $(BIN)/.cyclonedx-gomod-$(CYCLONEDX_VERSION)

.PHONY: tools tools-compose tools-ghz
tools: $(BUF) $(PLUGINS) $(GOLANGCI) $(GHZ) $(COMPOSE) ## build the pinned tools into .tmp/bin
tools-compose: $(COMPOSE)
tools-ghz: $(GHZ)

##### code #####

.PHONY: generate verify-generate
generate: $(BUF) $(PLUGINS) ## generate Go from proto/
	$(BIN)/buf generate

# Compares with a fresh generation in a folder aside, so that it neither needs a clean tree nor changes it.
verify-generate: $(BUF) $(PLUGINS) ## fail when the generated Go is not what proto/ says
	@rm -rf .tmp/generated && mkdir -p .tmp/generated
	@$(BIN)/buf generate --output .tmp/generated
	@diff -r <(cd proto && find . -name '*.pb.go' | sort | xargs sha256sum) \
	         <(cd .tmp/generated/proto && find . -name '*.pb.go' | sort | xargs sha256sum) \
	  || { echo "generated code is stale: run make generate"; exit 1; }

.PHONY: lint lint-proto breaking freeze fix
lint: $(GOLANGCI) lint-proto ## golangci-lint and buf lint
	$(BIN)/golangci-lint run $(PKG)

lint-proto: $(BUF)
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

# proto/frozen.binpb is the image of the contracts that are promised: independent of history, and of who cloned how deep.
breaking: $(BUF) ## buf breaking against the frozen contracts
	$(BIN)/buf breaking --against proto/frozen.binpb

freeze: breaking ## promise the contracts as they are now; additions only, since breaking comes first
	$(BIN)/buf build --exclude-source-info -o proto/frozen.binpb

# What go fix knows is watched by golangci-lint too (modernize). Without the rewrite of short concatenations into a
# strings.Builder, which reads worse than what it replaces.
GOFIX := go fix -stringsbuilder=false
fix: $(GOLANGCI) ## apply what go fix, the formatters and the linters can mend
	$(GOFIX) $(PKG)
	$(BIN)/golangci-lint fmt
	$(BIN)/golangci-lint run --fix $(PKG)

.PHONY: build up
build: ## build bin/deltaplane
	CGO_ENABLED=0 go build -trimpath -ldflags "-X github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli.version=$$(git describe --always --dirty 2>/dev/null || echo dev)" -o bin/deltaplane ./cmd/deltaplane

##### releases: the same bytes from the same sources, wherever they lie #####

VERSION   ?= $(shell git describe --always --dirty 2>/dev/null || echo dev)
PLATFORMS ?= linux/amd64 linux/arm64
RELEASE   := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -buildid= -X github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli.version=$(VERSION)"

.PHONY: release sbom verify-release
release: ## bin/deltaplane-OS-ARCH for PLATFORMS, and their checksums
	@mkdir -p bin && rm -f bin/deltaplane-*
	@set -e; for p in $(PLATFORMS); do echo "$$p"; GOOS=$${p%/*} GOARCH=$${p#*/} $(RELEASE) -o bin/deltaplane-$${p%/*}-$${p#*/} ./cmd/deltaplane; done
	@cd bin && sha256sum deltaplane-* >SHA256SUMS && cat SHA256SUMS

# Read from the programs themselves, so that it names what is in them; it has no time and no serial number.
sbom: release $(CYCLONE) ## a CycloneDX bill of materials beside each program of a release
	@set -e; for f in $$(cd bin && sed 's/.* //' SHA256SUMS); do $(BIN)/cyclonedx-gomod bin -json -licenses=false -noserial -notimestamp -output bin/$$f.cdx.json bin/$$f; done; ls bin

verify-release: ## builds this machine's program here and from a copy elsewhere, and compares them
	@set -e; dir=$$(mktemp -d); trap 'rm -rf '$$dir EXIT; mkdir $$dir/copy; \
	git ls-files -z | tar --null -T - -cf - | tar -C $$dir/copy -xf -; \
	$(RELEASE) -o $$dir/here ./cmd/deltaplane; (cd $$dir/copy && $(RELEASE) -o $$dir/there ./cmd/deltaplane); \
	cmp $$dir/here $$dir/there; sha256sum <$$dir/here

up: ## run everything in one process (go run ./cmd/deltaplane up)
	go run ./cmd/deltaplane up

##### tests #####

.PHONY: deps vet test test-packages check race fuzz bench bench-queue chaos-queue consistency system soak soak-system race-soak
# The tests start a real redis-server. On a fresh Debian machine root gets it installed; others are told.
deps:
	@command -v redis-server >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing redis-server"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; } >/dev/null; \
	  else \
	    echo "The tests need redis-server on PATH (Debian: sudo apt-get install redis-server; macOS: brew install redis)."; exit 1; \
	  fi; }
	@go mod download

vet: ## go vet
	go vet $(PKG)

# Beside each other, since both wait for much of their time; what fails in the one does not end the other.
test: vet ## all tests: those of the packages, and the whole-system suite
	@$(MAKE) --no-print-directory -k -j2 test-packages system

# test/system and test/node are vetted too; they run whole programs and have their own targets, as in CI their own steps.
# Everything has been vetted before. Much of their time the tests wait: one package more at once than two processors have.
test-packages: deps ## the tests of PKG, in random order
	go test -vet=off -shuffle=on -p 3 -timeout $(TIMEOUT) $$(go list $(PKG) | grep -vE '/test/(system|node)$$')

check: $(GOLANGCI) ## vet, lint and tests of PKG without the race detector: PKG=./core/store
	@go vet $(PKG)
	@$(BIN)/golangci-lint run $(PKG)
	@go test -vet=off -shuffle=on -timeout $(TIMEOUT) $(PKG)

# The detector makes work several times as dear: random histories are shorter with it. The suites that judge
# processes by what they answered are left out; what runs in these has tests of its own.
race: deps ## the tests of PKG with the race detector, PKG=./services/queue/... for a part
	go test -race -vet=off -short -shuffle=on -count=1 -p 3 -timeout $(TIMEOUT) \
	  $$(go list $(PKG) | grep -vE '/test/(system|node|chaos|consistency|failover)$$')

.PHONY: example-test
example-test: deps ## the tests of examples/go-controller, and three replicas of it and of examples/kubebuilder-operator; on a real API server too with DELTAPLANE_KUBE=1
	cd examples/go-controller && go vet ./... && go test -vet=off ./...
	DELTAPLANE_EXAMPLE=1 go test -vet=off -count=1 -timeout $(TIMEOUT) -run 'Example(Controller|Operator)' ./test/system

fuzz: deps ## every fuzz target for FUZZTIME each
	@set -e; for pkg in $$(go list $(PKG)); do \
	  dir=$$(go list -f '{{.Dir}}' $$pkg); \
	  for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$dir/*_test.go 2>/dev/null | cut -d' ' -f2); do \
	    echo "fuzz $$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$pkg; \
	  done; \
	done

bench: ## the figures: BENCH=slice, BENCH_FLAGS=--quick
	go run ./bench $${BENCH:-slice} $(BENCH_FLAGS)

bench-queue: ## the figures of the queue: BENCH_FLAGS="-o FILE", --quick for a short run
	go run ./bench queue $(BENCH_FLAGS)

# One run after the other: two at a time would measure the machine. CHAOS_DIR keeps the histories, CHAOS_SEED repeats the order of faults.
chaos-queue: deps ## the queue under faults for CHAOS, and across failovers for half of it
	DELTAPLANE_CHAOS=$(CHAOS) DELTAPLANE_CHAOS_DIR=$(CHAOS_DIR) DELTAPLANE_CHAOS_SEED=$(CHAOS_SEED) \
	  go test -count=1 -v -parallel 1 -timeout 24h -run 'Promise' ./test/chaos

# The second time with a collector that runs all the time, which makes readers of the log fall behind by themselves.
consistency: deps ## ANSWERS answers of the index compared with the source's history under faults, and ROUNDS rounds between two replicas
	DELTAPLANE_ANSWERS=$(ANSWERS) DELTAPLANE_ROUNDS=$(ROUNDS) go test -count=1 -v -timeout 2h ./test/consistency
	GOGC=10 DELTAPLANE_ANSWERS=$(ANSWERS) DELTAPLANE_ROUNDS=$(ROUNDS) go test -count=1 -v -timeout 2h ./test/consistency

# With DELTAPLANE_KUBECONFIG the suite also runs against that API server; with DELTAPLANE_COMPOSE=1 against compose.
# Whole systems wait more than they work: more at once than there are processors, here and below.
system: deps ## the whole-system suite on `deltaplane up`
	go test -count=1 -timeout $(TIMEOUT) -parallel 4 ./test/system/...

soak: deps ## long checks of the queue: SOAK_OPS operations against the oracle per engine, FUZZTIME per fuzz target, the long chaos run
	DELTAPLANE_SOAK_OPS=$(SOAK_OPS) go test -count=1 -v -timeout 24h -run 'TestRandomHistoriesMatchTheOracle|TestEveryHistoryKeepsThePromises' ./core/workqueue ./services/queue/...
	$(MAKE) --no-print-directory fuzz PKG="./core/workqueue/... ./core/backoff/... ./services/queue/... ./client/..." FUZZTIME=$(FUZZTIME)
	$(MAKE) --no-print-directory chaos-queue

# SOAK_SEED repeats the order of the faults; GOFLAGS=-race puts the race detector into everything.
soak-system: deps ## everything under random faults for SOAK, and every invariant at the end
	DELTAPLANE_TEST_SOAK=$(SOAK) DELTAPLANE_TEST_SOAK_SEED=$(SOAK_SEED) go test -count=1 -v -timeout 0 -run NothingIsLostUnderFaults ./test/system

race-soak: deps ## the race tests over and over for SOAK
	@end=$$(( $$(date +%s) + $$(echo $(SOAK) | sed 's/h/*3600/;s/m/*60/;s/s//') )); n=0; \
	while [ $$(date +%s) -lt $$end ]; do n=$$((n+1)); echo "round $$n"; \
	  go test -race -shuffle=on -count=1 -timeout $(TIMEOUT) $(PKG) || exit 1; done

##### client-go's interfaces (client/clientgo, a module of its own) #####

# The module requires the older of the versions of client-go; the other one is required by a copy of its go.mod.
CLIENT_GO_NEXT := v0.37.2

# The suites are client-go's own tests, taken from the module cache. SHORT=-short leaves them out.
.PHONY: clientgo-test clientgo-next
clientgo-test: deps ## client-go's interfaces, and client-go's own suites on them
	cd client/clientgo && go mod tidy -diff && go vet ./...
	cd client/clientgo && go test -vet=off -count=1 -p 1 $(SHORT) -timeout $(TIMEOUT) ./...

clientgo-next: deps ## the same with the newer version of client-go
	@set -e; dir=$$(mktemp -d); trap 'rm -rf '$$dir EXIT; cd client/clientgo; cp go.mod go.sum $$dir; \
	go mod edit $(foreach m,api apimachinery client-go,-require=k8s.io/$(m)@$(CLIENT_GO_NEXT)) $$dir/go.mod; \
	echo "client-go $(CLIENT_GO_NEXT)"; \
	DELTAPLANE_MODFILE_DIR=$$dir go test -vet=off -count=1 -p 1 $(SHORT) -timeout $(TIMEOUT) -mod=mod -modfile=$$dir/go.mod ./...

##### dashboards and alerts (test/alerts, a module of its own) #####

# promtool and the engine of Prometheus come from its Go module.
.PHONY: alerts-test
alerts-test: ## rules, their pages and dashboards against what the services show, and each panel on a running system
	cd test/alerts && go mod tidy -diff && go vet ./... && go test -vet=off -count=1 -timeout $(TIMEOUT) ./...

##### controller-runtime (client/controllerruntime, a module of its own) #####

# The suite is controller-runtime's own of pkg/cache, taken from the module cache; with DELTAPLANE_KUBE=1 it and the
# example run on the programs of test/kube.
.PHONY: controllerruntime-test
controllerruntime-test: deps ## controller-runtime on Deltaplane, its suite of caches, and the tests of examples/kubebuilder-operator
	cd client/controllerruntime && go mod tidy -diff && go vet ./...
	cd examples/kubebuilder-operator && go mod tidy -diff && go vet ./...
	@set -e; export DELTAPLANE_KUBE_PROGRAMS=$$([ "$$DELTAPLANE_KUBE" != 1 ] || (cd test/kube && go run ./cmd/kube build)); \
	export KUBEBUILDER_ASSETS=$$DELTAPLANE_KUBE_PROGRAMS; \
	(cd client/controllerruntime && go test -vet=off -count=1 -p 1 -timeout $(TIMEOUT) ./...); \
	cd examples/kubebuilder-operator && go test -vet=off -count=1 -timeout $(TIMEOUT) ./...

##### a real Kubernetes API server, built from Go modules (test/kube) #####

KUBE := cd test/kube && go run ./cmd/kube
.PHONY: kube kube-down kube-test kube-nodes kube-build gateway-test
kube-build: ## compile its programs into the user's cache
	@$(KUBE) build

kube: ## build and start a real API server with nodes; prints its kubeconfig
	@$(KUBE) up --detach

kube-down: ## stop it
	@$(KUBE) down

# A cluster that ran before stays; one started here is stopped again.
define ON_KUBE
set -e; was=no; (cd test/kube && go run ./cmd/kube kubeconfig) >/dev/null 2>&1 && was=yes; \
[ $$was = yes ] || { $(MAKE) --no-print-directory kube; trap '$(MAKE) --no-print-directory kube-down' EXIT; };
endef

# DELTAPLANE_WRITES=10000 reads more writes back.
kube-test: PKG := ./test/api/... ./test/system/... ./services/controllers ./services/reflector ./services/indexer ./internal/authority
kube-test: deps ## API conformance and whole-system suite on a real API server
	@$(ON_KUBE) \
	export DELTAPLANE_KUBECONFIG=$$(cd test/kube && go run ./cmd/kube kubeconfig); \
	echo "kubeconfig $$DELTAPLANE_KUBECONFIG"; \
	go test -count=1 -timeout $(TIMEOUT) -run 'Real|TestJobsOfAllKinds|TestPreconditionsOfTheAPIServer' $(PKG)

##### a real containerd, built from Go modules (test/containerd) #####

.PHONY: containerd containerd-deps containerd-test chaos-node
containerd: ## build containerd 2 into .tmp/containerd, for the tests of the node agent
	@test/containerd/build.sh .tmp/containerd/bin

# runc starts containers; the distribution's containerd is the second runtime that the tests run on.
containerd-deps:
	@missing=; for p in runc containerd; do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null; \
	fi

# With DELTAPLANE_KUBE=1 also below a real API server, which is built first.
containerd-test: deps containerd-deps containerd ## the node agent's whole-system suite on real containers; needs Linux and root
	go test -count=1 -timeout $(TIMEOUT) -parallel 3 ./test/node/...

##### upstream's end-to-end suite (test/e2e) #####

# AGAIN=failed or AGAIN=all runs specs again that have a result in .tmp/e2e; PARALLEL is how many run at once.
PARALLEL ?= 4
AGAIN ?= none
.PHONY: e2e e2e-all e2e-gateway
e2e: containerd-deps containerd ## a choice of upstream's specs of Jobs and taint eviction on our controllers and node agent; needs Linux and root
	go run ./test/e2e --parallel $(PARALLEL)

e2e-all: containerd-deps containerd ## all of these specs; goes on where it was ended, and writes test/e2e/RESULTS.md
	go run ./test/e2e --all --again $(AGAIN) --parallel $(PARALLEL) --table test/e2e/RESULTS.md

e2e-gateway: containerd-deps containerd ## the same, whose specs call the gateway in place of the API server; writes test/e2e/GATEWAY.md
	go run ./test/e2e --gateway --all --again $(AGAIN) --parallel $(PARALLEL) --dir .tmp/e2e-gateway --table test/e2e/GATEWAY.md

# Clients of others, for the test of the gateway: kubectl is built with the programs of test/kube.
.PHONY: clients-deps
clients-deps:
	@missing=; /usr/bin/python3 -c 'import kubernetes' 2>/dev/null || missing=python3-kubernetes; \
	command -v npm >/dev/null || missing="$$missing nodejs npm"; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; } >/dev/null; \
	fi
	@mkdir -p .tmp/clients && cp test/clients/package.json .tmp/clients/
	@[ -d .tmp/clients/node_modules/@kubernetes/client-node ] || { cd .tmp/clients && npm install --silent --no-audit --no-fund --no-package-lock; }

gateway-test: deps clients-deps ## the gateway before a real API server: random reads beside it, callers, and clients of others
	@$(ON_KUBE) \
	export DELTAPLANE_KUBECONFIG=$$(cd test/kube && go run ./cmd/kube kubeconfig) DELTAPLANE_CLIENTS=1; \
	export DELTAPLANE_KUBECTL=$$(cd test/kube && go run ./cmd/kube build)/kubectl; \
	go test -count=1 -timeout $(TIMEOUT) -run 'Real' ./services/gateway; \
	go test -count=1 -timeout $(TIMEOUT) -run 'RealClientsOfOthers' ./test/system

# Each test has a cluster of its own; the one without nodes is for the test that brings its own kubelets.
kube-nodes: deps ## nodes that fail, evictions, the webhook, and ours beside kube-controller-manager, on real API servers
	DELTAPLANE_KUBE=1 go test -count=1 -timeout $(TIMEOUT) -parallel 4 -run 'TestReal' ./test/system
	@set -e; bare=$(CURDIR)/.tmp/kube-bare; $(KUBE) up --detach --nodes 0 --dir $$bare >/dev/null; \
	trap '$(KUBE) down --dir '$$bare EXIT; \
	cd $(CURDIR) && DELTAPLANE_KUBECONFIG=$$bare/kubeconfig go test -count=1 -timeout $(TIMEOUT) -run OnAnyAPIServer ./services/controllers

# OLDER is a commit, a branch or a tag; by default the last before there was a chart.
OLDER ?= 5207b1f90c
.PHONY: mixed mixed-with
mixed-with: # says which
	@echo $(OLDER)

mixed: deps ## this version and an OLDER one in one deployment: each replaces the other through the whole-system suite
	@git cat-file -e $(OLDER)^{commit} || { echo "mixed: this clone has no $(OLDER); name another version by OLDER="; exit 1; }
	rm -rf .tmp/mixed && mkdir -p .tmp/mixed/src
	git archive $(OLDER) | tar x -C .tmp/mixed/src
	cd .tmp/mixed/src && go build -o ../deltaplane ./cmd/deltaplane
	DELTAPLANE_TEST_OLDER_BUILD=$(CURDIR)/.tmp/mixed/deltaplane go test -count=1 -timeout $(TIMEOUT) -run TwoVersionsReplace ./test/system

chaos-node: deps containerd-deps containerd ## a node under faults for CHAOS: nothing may run twice
	DELTAPLANE_CHAOS=$(CHAOS) DELTAPLANE_CHAOS_SEED=$(CHAOS_SEED) go test -count=1 -v -timeout 24h -run NothingRunsTwice ./test/node

##### the chart (test/helm, a module of its own with Helm in it) #####

.PHONY: chart-render chart-test
chart-render: ## write deploy/kubernetes and deploy/rbac.yaml, which are made of deploy/chart
	cd test/helm && go run ./cmd/render

chart-test: deps ## the chart: lint, what it renders with many values, that what is made of it is unchanged; with DELTAPLANE_KUBE=1 its installation
	cd test/helm && go mod tidy -diff && go vet ./... && go test -vet=off -count=1 -timeout $(TIMEOUT) ./...

##### the console's pages (services/console/web, built by services/console/build, a module of its own) #####

WEB := services/console/web

# Node is taken from the machine; a fresh Debian machine gets it installed as root.
.PHONY: console-deps console-checked console verify-console
console-deps: $(BUF)
	@command -v npm >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing nodejs npm"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm; } >/dev/null; \
	  else echo "The console's pages are built with Node 20 and npm on PATH."; exit 1; fi; }
	@cd $(WEB) && if ! cmp -s package-lock.json node_modules/.deltaplane-lock; then \
	  npm ci --silent --no-audit --no-fund && cp package-lock.json node_modules/.deltaplane-lock; fi

console-checked: console-deps
	@cd $(WEB) && $(BIN)/buf generate && node node_modules/typescript/bin/tsc

console: console-checked ## check and bundle the console's pages into services/console/assets, which are committed
	@cd services/console/build && go run . -root ..

verify-console: console-checked ## fail when services/console/assets is not what its sources make, or is too large
	@cd services/console/build && go mod tidy -diff && go vet . && go run . -root .. -check

# Node is there for axe, which judges what screen readers get; Chromium is Debian's.
.PHONY: chromium-deps console-test console-figures console-screenshots
chromium-deps:
	@command -v chromium >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing chromium"; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null; \
	  else echo "The tests of the console need chromium on PATH (Debian: sudo apt-get install chromium)."; exit 1; fi; }

CONSOLE_TEST := go test -vet=off -count=1 -timeout $(TIMEOUT)
console-test: deps console-deps chromium-deps ## the console's pages in a browser, on a running system
	cd test/console && go mod tidy -diff && go vet ./...
	cd test/console && $(CONSOLE_TEST) ./...

console-figures: deps console-deps chromium-deps ## how long the browser is held and a change takes to the screen, with 100,000 objects
	@cd test/console && DELTAPLANE_CONSOLE_ROWS=100000 $(CONSOLE_TEST) -v -run ManyRows ./... | grep -E 'figure|FAIL|^ok'

console-screenshots: deps console-deps chromium-deps ## write docs/console/*.png
	cd test/console && DELTAPLANE_CONSOLE_PICTURES=$(CURDIR)/docs/console $(CONSOLE_TEST) -run Pictures ./...

##### compose #####

.PHONY: compose-up compose-down compose-test
compose-up: $(COMPOSE) ## deploy/compose.yaml (SECURE=1: compose.secure.yaml) with stand-in base images; starts a Docker engine if none answers
	@test/compose/compose.sh up

compose-down: $(COMPOSE) ## take it down, volumes too
	@test/compose/compose.sh down

compose-test: deps compose-up ## smoke check of compose.yaml; smoke check and whole-system suite on compose.secure.yaml
	@test/compose/compose.sh smoke && test/compose/compose.sh down
	@trap 'SECURE=1 test/compose/compose.sh down' EXIT; set -e; export SECURE=1; \
	test/compose/compose.sh up; \
	test/compose/compose.sh smoke; \
	if [ -d test/system ]; then DELTAPLANE_COMPOSE=1 go test -count=1 -timeout $(TIMEOUT) -run 'Compose' ./test/system/...; fi

.PHONY: clean
clean: ## remove what was built here, tools too
	rm -rf bin .tmp
