"""What no library sends, over bare sockets."""
import json
import socket
import time
from urllib.parse import urlsplit

from check import OPEN, check, finish, is_error

ADDRESS = (urlsplit(OPEN).hostname, urlsplit(OPEN).port)
BODY = json.dumps({"model": "sim", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]})
STREAM = json.dumps({"model": "sim", "max_tokens": 8, "stream": True, "messages": [{"role": "user", "content": "hello"}]})
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
MODELS = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


def request(body=BODY, extra=""):
    return f"{HEAD}{extra}Content-Length: {len(body)}\r\n\r\n{body}"


CHUNKED = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"


class Wire:
    """A connection that reads answers by their framing and nothing else."""

    def __init__(self):
        self.s = socket.create_connection(ADDRESS, 15)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.r = self.s.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.r.close()
        self.s.close()

    def send(self, raw):
        try:
            self.s.sendall(raw if isinstance(raw, bytes) else raw.encode())
        except OSError:
            pass  # refused midway: the answer is what counts

    def answer(self, head=False):
        """Status, headers and body; status 0 where the connection ended first."""
        line = self.r.readline().decode()
        if not line:
            return 0, {}, b""
        status, fields = int(line.split()[1]), {}
        for line in iter(lambda: self.r.readline().decode().rstrip("\r\n"), ""):
            name, _, value = line.partition(":")
            fields.setdefault(name.lower(), []).append(value.strip())
        if len(fields.get("content-length", [])) + len(fields.get("transfer-encoding", [])) > 1:
            raise AssertionError(f"two framings: {fields}")
        if head or status in (100, 204, 304):
            return status, fields, b""
        if "transfer-encoding" in fields:
            body = b""
            while n := int(self.r.readline(), 16):
                body += self.r.read(n)
                assert self.r.readline() == b"\r\n"
            assert self.r.readline() == b"\r\n"
            return status, fields, body
        if "content-length" in fields:
            return status, fields, self.r.read(int(fields["content-length"][0]))
        return status, fields, self.r.read()

    def ended(self):
        try:
            return self.r.read(1) == b""
        except ConnectionResetError:
            return True
        except OSError:
            return False


def exchange(name, raw, status, *, closes=None):
    """One request; an error must be readable. With closes, also what follows is known."""
    with Wire() as w:
        w.send(raw)
        try:
            got, fields, body = w.answer()
        except (OSError, ValueError, AssertionError) as e:
            check(name, False, repr(e))
            return
        ok = got == status and (got < 400 or is_error(body))
        if closes:
            ok = ok and w.ended()
        elif closes is False:
            w.send(MODELS)
            ok = ok and w.answer()[0] == 200
        check(name, ok, (got, fields, body[:300]))


# Pipelining: answers in order, whatever comes between.
with Wire() as w:
    w.send(request() + MODELS + request(STREAM) + MODELS + request("{}") + MODELS)
    got = [w.answer() for _ in range(6)]
    check("pipelining, statuses", [g[0] for g in got] == [200, 200, 200, 200, 400, 200], [g[0] for g in got])
    check("pipelining, bodies", b"chat.completion" in got[0][2] and b'"list"' in got[1][2] and got[2][2].endswith(b"data: [DONE]\n\n") and b'"list"' in got[3][2])
with Wire() as w:
    w.send(request() * 20)
    check("pipelining, 20 of them", [w.answer()[0] for _ in range(20)] == [200] * 20)

# Pieces: per byte, and at places that hurt.
with Wire() as w:
    for b in request().encode():
        w.send(bytes([b]))
    check("byte by byte", w.answer()[0] == 200)
for at in ("POST", "HTTP/1.1\r", "Host", "application/json\r\n", "Content-Length: ", "\r\n\r\n", BODY[:20]):
    with Wire() as w:
        raw = request()
        cut = raw.index(at) + len(at)
        w.send(raw[:cut])
        time.sleep(0.05)
        w.send(raw[cut:])
        check(f"split after {at[:12]!r}", w.answer()[0] == 200)
with Wire() as w:
    w.send(HEAD + "Transfer-Encoding: chunked\r\n\r\n")
    for c in BODY:
        w.send(f"1\r\n{c}\r\n")
    w.send("0\r\n\r\n")
    check("chunks of a byte", w.answer()[0] == 200)

# Forms that RFC 9112 lets a server accept or not: 200 or a readable refusal and the end.
for name, raw in {
    "LF line ends": request().replace("\r\n", "\n"),
    "an empty line first": "\r\n" + request(),
    "absolute form": request().replace("/v1/chat", "http://x/v1/chat", 1),
    "chunk extension": HEAD + "Transfer-Encoding: chunked\r\n\r\n" + CHUNKED.replace("\r\n", ";a=b\r\n", 1),
    "trailer": HEAD + "Transfer-Encoding: chunked\r\n\r\n" + CHUNKED[:-2] + "X-Trailer: 1\r\n\r\n",
    "upper case CHUNKED": HEAD + "Transfer-Encoding: CHUNKED\r\n\r\n" + CHUNKED,
}.items():
    with Wire() as w:
        w.send(raw)
        try:
            status, _, body = w.answer()
        except (OSError, ValueError, AssertionError) as e:
            check(name, False, repr(e))
            continue
        check(name, status == 200 or status in (400, 408) and is_error(body) and w.ended(), (status, body[:200]))

# Smuggling: what follows must not be answered as a request of its own.
for i, raw in enumerate([
    HEAD + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\ncontent-length: 0\r\n\r\n" + CHUNKED,
    HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    HEAD + "Content-Length: 5, 5\r\n\r\nabcde",
    HEAD + "Content-Length: +5\r\n\r\nabcde",
    HEAD + "Content-Length: 0x5\r\n\r\nabcde",
    HEAD + "Content-Length: -1\r\n\r\nabcde",
    HEAD + "Content-Length: 5 6\r\n\r\nabcde",
    HEAD + "Content-Length:\r\n\r\nabcde",
    HEAD + "Content-Length: 99999999999999999999\r\n\r\nabcde",
    HEAD + "Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nabcde",
    HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding : chunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding:\r\n chunked\r\n\r\n" + CHUNKED,
    HEAD.replace("1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\n\r\n" + CHUNKED.replace("\r\n", ";a\nb\r\n", 1),
    HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\n\r\n-1\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + CHUNKED,
    HEAD + "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefg\r\n0\r\n\r\n",
    HEAD + "X: a\r\n b\r\nContent-Length : 2\r\n\r\n{}",
    HEAD.replace("Host: x\r\n", "", 1) + "Content-Length: 2\r\n\r\n{}",
    HEAD.replace("Host: x", "Host: x\r\nHost: y", 1) + "Content-Length: 2\r\n\r\n{}",
    HEAD.replace("POST ", "POST  ", 1) + "Content-Length: 2\r\n\r\n{}",
    HEAD.replace("HTTP/1.1", "HTTP/1.1 x", 1) + "Content-Length: 2\r\n\r\n{}",
    HEAD.replace("HTTP/1.1", "HTTP/3.7", 1) + "Content-Length: 2\r\n\r\n{}",
    HEAD + "X\x00Y: 1\r\nContent-Length: 2\r\n\r\n{}",
    "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]):
    with Wire() as w:
        w.send(raw + MODELS)
        try:
            status, _, body = w.answer()
            ok = 400 <= status < 600 and is_error(body) and w.ended()
        except (OSError, ValueError, AssertionError) as e:
            status, body, ok = 0, repr(e), False
        check(f"smuggling {i}: {raw[len(HEAD) - 2:][:60]!r}", ok, (status, body))

# Limits, and connections that end early.
exchange("body of the limit and a byte", request("x" * ((1 << 20) + 1)), 413)
exchange("endless chunks", HEAD + "Transfer-Encoding: chunked\r\n\r\n" + ("10000\r\n" + "x" * 65536 + "\r\n") * 40, 413)
exchange("70 KiB of headers", request(extra="X-Large: " + "x" * 70000 + "\r\n"), 431)
exchange("a thousand header fields", request(extra="".join(f"X-{i}: 1\r\n" for i in range(1000))), 200, closes=False)
exchange("a target of 70 KiB", f"GET /{'x' * 70000} HTTP/1.1\r\nHost: x\r\n\r\n", 431)
exchange("an error keeps the connection", request("{"), 400, closes=False)
exchange("Connection: close", request(extra="Connection: close\r\n"), 200, closes=True)
exchange("HTTP/1.0", request().replace("HTTP/1.1", "HTTP/1.0", 1), 200, closes=True)
with Wire() as w:
    w.send(f"{HEAD}Expect: 100-continue\r\nContent-Length: {len(BODY)}\r\n\r\n")
    first = w.answer()[0]
    w.send(BODY)
    check("100, then 200", (first, w.answer()[0]) == (100, 200))
for raw in (request()[:30], request()[:-5], request(STREAM)[:-5], HEAD + "Transfer-Encoding: chunked\r\n\r\n5\r\nab"):
    with Wire() as w:
        w.send(raw)
        w.s.shutdown(socket.SHUT_WR)
        try:
            status, _, body = w.answer()
        except OSError:
            status, body = 0, b""
        check(f"half a request of {len(raw)} bytes", status == 0 or status >= 400 and is_error(body), (status, body))
with Wire() as w:
    w.send(request(STREAM))
    w.answer()
    w.send(request(STREAM))
    check("two streams on a connection", w.answer()[2].endswith(b"data: [DONE]\n\n"))

finish("raw sockets")
