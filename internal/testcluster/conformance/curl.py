"""curl against the proxy."""
import gzip
import json
import os
import subprocess
import tempfile
import time

from check import KEY, KEYED, OPEN, check, finish, is_error, texts

CHAT = "/v1/chat/completions"
body = {"model": "sim", "max_tokens": 20, "messages": [{"role": "user", "content": "Say something, curl."}]}
plain, stream = json.dumps(body), json.dumps({**body, "stream": True})


def curl(*args, base=OPEN, data=None, path=CHAT):
    """Status, body, and what -v said."""
    with tempfile.NamedTemporaryFile() as out:
        args = ["curl", "-sS", "-v", "--max-time", "20", "-o", out.name, "-w", "%{http_code} %{http_version} %{num_connects}", *args]
        if data is not None:
            args += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        p = subprocess.run([*args, base + path], input=data if isinstance(data, bytes) else (data or "").encode(), capture_output=True)
        return p.stdout.decode(), open(out.name, "rb").read().decode(), p.stderr.decode(errors="replace"), p.returncode


def text(b):
    try:
        return json.loads(b)["choices"][0]["message"]["content"]
    except (ValueError, KeyError):
        return None


w, b, _, code = curl(data=plain)
right = texts(body)
check("POST", w.startswith("200 1.1") and text(b) in right and code == 0, (w, b))
w, b, _, code = curl("--http1.0", data=plain)
check("HTTP/1.0", w.startswith("200 1.") and text(b) in right and code == 0, (w, b))
w, b, _, code = curl("--http1.0", data=stream)
check("HTTP/1.0 stream", w.startswith("200") and b.endswith("data: [DONE]\n\n") and code == 0, (w, b[-200:]))
w, b, _, code = curl("--http1.0", "-H", "Connection: keep-alive", data=plain)
check("HTTP/1.0 keep-alive", w.startswith("200") and text(b) in right, (w, b))
w, b, said, code = curl("--http2", data=plain)
check("an offer of h2c is declined", w.startswith("200 1.1") and text(b) in right, (w, b))

# One connection for many requests.
p = subprocess.run(["curl", "-sS", "--max-time", "20", "-o", os.devnull, "-o", os.devnull, "-o", os.devnull, "-w", "%{num_connects}\n", OPEN + "/v1/models", OPEN + "/v1/models", OPEN + "/v1/models"], capture_output=True, text=True)
check("keep-alive", p.stdout.split() == ["1", "0", "0"], p.stdout)
w, b, said, _ = curl("-H", "Connection: close", data=plain)
check("Connection: close", w.startswith("200") and "Closing connection" in said, said[-300:])

# Uploads.
large = json.dumps({**body, "messages": [{"role": "user", "content": "word " * 20000}]})
w, b, said, _ = curl("-H", "Expect: 100-continue", data=large)
check("Expect", w.startswith("200") and "HTTP/1.1 100" in said, (w, b[:200]))
w, b, said, _ = curl("-H", "Expect: 100-continue", data="x" * (2 << 20))
check("Expect, too large", w.startswith("413") and is_error(b) and "HTTP/1.1 100" not in said, (w, b[:200]))
w, b, said, _ = curl("-H", "Expect: 100-continue", data=large, path="/v1/nothing")
check("Expect, no such path", w.startswith("404") and is_error(b), (w, b[:200]))
w, b, _, code = curl("-H", "Expect:", data="x" * (2 << 20))
check("too large", w.startswith("413") and is_error(b), (w, b[:200], code))
w, b, _, _ = curl("-H", "Transfer-Encoding: chunked", data=plain)
check("chunked upload", w.startswith("200") and text(b) in right, (w, b))
w, b, _, _ = curl("-H", "Transfer-Encoding: chunked", "-H", "Expect:", data="x" * (2 << 20))
check("chunked upload, too large", w.startswith("413") and is_error(b), (w, b))
for name, data in {"gzip": gzip.compress(plain.encode())}.items():
    w, b, _, _ = curl("-H", "Content-Encoding: " + name, data=data)
    check(name + " body", w.startswith("200") and text(b) in right, (w, b))
w, b, _, _ = curl("-H", "Content-Encoding: gzip", data=plain)
check("gzip that is none", w.startswith("400") and is_error(b), (w, b))
w, b, _, _ = curl("-H", "Content-Encoding: gzip", data=gzip.compress(b"0" * (8 << 20)))
check("gzip bomb", w.startswith("413") and is_error(b), (w, b))
w, b, _, _ = curl("-H", "Content-Encoding: lzma", data=plain)
check("unknown encoding", w.startswith("415") and is_error(b), (w, b))

# Streams: the first event comes long before the last.
p = subprocess.Popen(["curl", "-sSN", "--max-time", "20", "-H", "Content-Type: application/json", "-d", json.dumps({**body, "stream": True, "max_tokens": 100, "ignore_eos": True}), OPEN + CHAT], stdout=subprocess.PIPE, text=True)
times = [time.monotonic() for line in p.stdout if line.startswith("data:")]
check("-N", p.wait() == 0 and len(times) > 20 and times[-1] - times[0] > 0.2, (len(times), times[-1:], times[:1]))
w, b, _, code = curl("--compressed", data=stream)
check("--compressed stream", w.startswith("200") and b.endswith("data: [DONE]\n\n") and code == 0, (w, b[-100:]))
w, b, _, code = curl("--limit-rate", "2k", data=stream)
check("slow reader", w.startswith("200") and b.endswith("data: [DONE]\n\n") and code == 0, (w, code))

# Methods, paths, keys.
for args, status in ((["-X", "PUT"], "405"), (["-X", "DELETE"], "405"), (["-X", "OPTIONS"], "405"), (["-G"], "405")):
    w, b, said, _ = curl(*args, path=CHAT)
    check("method " + args[-1], w.startswith(status) and is_error(b) and "< allow:" in said.lower(), (w, b))
w, b, said, code = curl("-I", path="/v1/models")
check("HEAD", code == 0 and w[:3] in ("200", "405"), (w, b, code))
for path in ("/", "/v1", "/v1/embeddings", "/v1/chat/completions/x", "/%2e%2e/metrics", "/metrics", "/debug/workers"):
    w, b, _, _ = curl("--path-as-is", path=path)
    check("no such path " + path, w.startswith("404") and is_error(b), (w, b))
w, b, _, _ = curl(path=CHAT + "?api-version=1", data=plain)
check("a query", w.startswith("200") and text(b) in right, (w, b))
w, b, _, _ = curl("-H", "Authorization: Bearer " + KEY, base=KEYED, data=plain)
check("a key", w.startswith("200") and text(b) in right, (w, b))
for name, args in {"none": [], "Basic": ["-u", "user:" + KEY], "wrong": ["-H", "Authorization: Bearer x"], "bare": ["-H", "Authorization: " + KEY]}.items():
    w, b, said, _ = curl(*args, base=KEYED, data=plain)
    check("key " + name, w.startswith("401") and is_error(b) and KEY not in b, (w, b))
w, b, _, _ = curl("-H", "Cookie: " + "c" * 15000, data=plain)
check("15 KiB of headers", w.startswith("200"), (w, b))
w, b, _, _ = curl("-H", "Cookie: " + "c" * 70000, data=plain)
check("70 KiB of headers", w.startswith("431") and is_error(b), (w, b))

finish(subprocess.run(["curl", "--version"], capture_output=True, text=True).stdout.split(" (")[0])
