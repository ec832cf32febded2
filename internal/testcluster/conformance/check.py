"""Counts checks. A check that fails is printed, and makes the process fail at the end."""
import json
import os
import sys
import urllib.request

OPEN, KEYED, KEY = os.environ["OPEN"], os.environ["KEYED"], os.environ["KEY"]
passed, failed = 0, []


def check(what, ok, detail=""):
    global passed
    if ok:
        passed += 1
    else:
        failed.append(what)
        print(f"FAILED: {what}: {detail}"[:800], file=sys.stderr)


def raises(what, kind, call, **fields):
    """call must raise kind, whose attributes are fields."""
    try:
        got = call()
    except kind as e:
        wrong = {k: getattr(e, k, None) for k, v in fields.items() if getattr(e, k, None) != v}
        check(what, not wrong, f"{e!r} has {wrong}")
        return e
    except Exception as e:  # any other is what the check is about
        check(what, False, repr(e))
        return None
    check(what, False, f"no error but {got!r}")
    return None


def is_error(body):
    """Tells whether body is OpenAI's error object."""
    try:
        e = json.loads(body)["error"]
        return bool(e["message"]) and bool(e["type"])
    except (ValueError, KeyError, TypeError):
        return False


def workers():
    """URLs of the simulated workers of the proxy without keys."""
    with urllib.request.urlopen(os.environ["OPEN_ADMIN"] + "/debug/workers", timeout=5) as r:
        return [w["url"] for w in json.load(r)["workers"]]


def texts(body, path="/v1/chat/completions"):
    """What the workers answer themselves: each has replies of its own."""
    out = set()
    for url in workers():
        q = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(q, timeout=20) as r:
            choice = json.load(r)["choices"][0]
            out.add(choice["text"] if "text" in choice else choice["message"]["content"])
    return out


def fault(**fields):
    """Makes both workers misbehave; without fields, behave."""
    for url in workers():
        q = urllib.request.Request(url + "/fault", json.dumps(fields).encode(), {"Content-Type": "application/json"})
        urllib.request.urlopen(q, timeout=5).close()


def finish(who):
    print(f"{who}: {passed} of {passed + len(failed)} checks pass")
    sys.exit(1 if failed or not passed else 0)
