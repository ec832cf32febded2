#!/bin/sh
# Runs TestBenchOverhead at full size. Where nginx is missing it takes Debian's package apart
# in a temporary directory: nothing is installed and no service starts.
set -eu
cd "$(dirname "$0")/../.."
fail() { echo "overhead: $*" >&2; exit 1; }

[ "$(uname)" = Linux ] || fail "needs Linux: it reads /proc"
nginx=$(command -v nginx || command -v /usr/sbin/nginx || true)
if [ -z "$nginx" ]; then
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || fail "nginx is missing and this is no Debian: install nginx"
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	(cd "$dir" && apt-get download nginx && dpkg-deb -x nginx_*.deb .) >"$dir/log" 2>&1 ||
		{ cat "$dir/log" >&2; fail "cannot fetch nginx: run apt-get update, or install it"; }
	nginx=$dir/usr/sbin/nginx
fi
"$nginx" -v || fail "$nginx does not run"
WARMROUTE_NGINX=$nginx WARMROUTE_OVERHEAD=1 "${GO:-go}" test -count=1 -timeout 8m -v -run '^TestBenchOverhead$' ./internal/testcluster
