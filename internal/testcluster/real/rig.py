"""Processes and chats for the checks against real engines."""
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Rig(contextlib.ExitStack):
    """Starts processes and ends each by its id, newest first."""

    def start(self, name, *args, env=None):
        log = tempfile.NamedTemporaryFile(prefix=name + "-", suffix=".log", delete=False)
        proc = subprocess.Popen(args, stdout=log, stderr=log, env={**os.environ, **(env or {})})
        self.callback(self.stop, proc)
        proc.log = log.name
        proc.label = name
        return proc

    @staticmethod
    def stop(proc):
        if proc.poll() is None:
            proc.send_signal(signal.SIGTERM)
            try:
                proc.wait(10)
            except subprocess.TimeoutExpired:
                proc.kill()
                proc.wait()


def get(url):
    with urllib.request.urlopen(url, timeout=5) as r:
        return r.read()


def wait_for(what, check, seconds=60, procs=()):
    """Polls check until it returns something true."""
    end = time.monotonic() + seconds
    last = None
    while time.monotonic() < end:
        for p in procs:
            if p.poll() is not None:
                sys.exit(f"{p.label} exited with {p.returncode}:\n{open(p.log).read()[-2000:]}")
        try:
            last = check()
            if last:
                return last
        except OSError as e:
            last = e
        time.sleep(0.1)
    sys.exit(f"{what}: not after {seconds} s ({last})" + "".join(f"\n{p.label}: {open(p.log).read()[-1500:]}" for p in procs))


class Turn:
    def __init__(self, text, worker, ttft, prompt, cached, output):
        self.text, self.worker, self.ttft, self.prompt, self.cached, self.output = text, worker, ttft, prompt, cached, output


def chat(client, model, messages, max_tokens):
    """One streamed turn: text, worker, TTFT in seconds from before the write, prompt and cached tokens."""
    began = time.perf_counter()
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, max_tokens=max_tokens, temperature=0, stream=True,
        stream_options={"include_usage": True})
    ttft, text, usage = None, [], None
    for chunk in raw.parse():
        if chunk.choices and chunk.choices[0].delta.content:
            if ttft is None:
                ttft = time.perf_counter() - began
            text.append(chunk.choices[0].delta.content)
        usage = chunk.usage or usage
    details = usage.prompt_tokens_details if usage else None
    return Turn("".join(text), raw.headers["x-warmroute-worker"], ttft or time.perf_counter() - began,
                usage.prompt_tokens if usage else 0, (details.cached_tokens or 0) if details else 0,
                usage.completion_tokens if usage else 0)


def p50(values):
    return statistics.median(values) if values else float("nan")


def workers_json(admin):
    return json.loads(get(f"http://127.0.0.1:{admin}/debug/workers"))
