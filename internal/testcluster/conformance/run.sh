#!/usr/bin/env bash
# What others wrote talks to the proxy: OpenAI's SDKs for Python and JavaScript, go-openai,
# curl, and sockets that send what no library would. Each against `warmroute serve
# --simulate 2`, once without and once with API keys.
#
# Installs the SDKs into a temporary directory, or into WARMROUTE_CONFORMANCE_DIR, which is
# kept. Needs go, python3 with venv, node, npm and curl; fails without them.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."

python_openai=openai==3.57.0
npm_openai=openai@7.59.0

for tool in go python3 node npm curl; do
  command -v "$tool" >/dev/null || { echo "conformance: $tool is missing" >&2; exit 1; }
done

run=$(mktemp -d)
dir=${WARMROUTE_CONFORMANCE_DIR:-$run}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
servers=()
finish() {
  for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$run"
}
trap finish EXIT

[ -x "$dir/venv/bin/python" ] || python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip install -q "$python_openai"
npm install --silent --no-fund --no-audit --prefix "$dir/node" "$npm_openai" >/dev/null
go build -o "$run/warmroute" ./cmd/warmroute

export KEY=sk-conformance
printf -- '- name: conformance\n  sha256: %s\n  models: [sim, gone]\n' "$(printf %s "$KEY" | sha256sum | cut -d' ' -f1)" >"$run/keys.yaml"

# serve NAME ARGS: starts a proxy on free ports and sets NAME and NAME_ADMIN to its URLs.
serve() {
  local name=$1 ports i
  shift
  ports=$(python3 -c 'import socket
s = [socket.socket() for _ in range(2)]
for x in s: x.bind(("127.0.0.1", 0))
print(*[x.getsockname()[1] for x in s])')
  set -- $ports "$@"
  "$run/warmroute" serve --simulate 2 --log-level error --listen "127.0.0.1:$1" --admin "127.0.0.1:$2" "${@:3}" 2>"$run/$name.log" &
  servers+=($!)
  export "$name=http://127.0.0.1:$1" "${name}_ADMIN=http://127.0.0.1:$2"
  for i in $(seq 300); do
    curl -sf -o /dev/null "http://127.0.0.1:$2/readyz" && return
    sleep 0.1
  done
  cat "$run/$name.log" >&2
  echo "conformance: $name is not ready after 30 s" >&2
  exit 1
}
serve OPEN --max-body 1MiB
serve KEYED --auth-file "$run/keys.yaml"

"$python" "$here/sdk.py"
NODE_PATH=$dir/node/node_modules node "$here/sdk.cjs"
"$python" "$here/curl.py"
"$python" "$here/sockets.py"
go test -count=1 -run '^TestLive_OpenAIClient$' ./internal/testcluster >"$run/go" || { cat "$run/go"; exit 1; }
echo "go-openai $(go list -m -f '{{.Version}}' github.com/sashabaranov/go-openai): TestLive_OpenAIClient passes"
