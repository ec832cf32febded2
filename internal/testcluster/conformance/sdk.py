"""OpenAI's Python SDK against the proxy."""
import json
import time

import openai

from check import KEY, KEYED, OPEN, check, fault, finish, raises, texts

client = openai.OpenAI(base_url=OPEN + "/v1", api_key="any", max_retries=0, timeout=30)
hello = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}]
ask = {"model": "sim", "messages": hello, "max_tokens": 20}
tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}}}

right = texts(ask)

# Whole answers.
r = client.chat.completions.create(**ask)
text = r.choices[0].message.content
check("chat", text in right and r.choices[0].finish_reason in ("stop", "length") and r.object == "chat.completion", r)
check("chat usage", r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens > 0, r.usage)
check("chat request id", bool(r._request_id), r)
check("unknown fields", client.chat.completions.create(**ask, extra_body={"top_k": 5, "chat_template_kwargs": {"x": None}}).choices[0].message.content in right)
check("chat n", len(client.chat.completions.create(**ask, n=3).choices) == 3)
raw = client.chat.completions.with_raw_response.create(**ask, extra_headers={"X-Request-Id": "mine-1"})
check("request id comes back", raw.headers["x-request-id"] == "mine-1", raw.headers)
check("worker is named", raw.headers.get("x-warmroute-worker"), raw.headers)

# Streams.
chunks = list(client.chat.completions.create(**ask, stream=True))
check("stream text", "".join(c.choices[0].delta.content or "" for c in chunks) in right)
check("stream ends", [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == [r.choices[0].finish_reason])
check("stream without usage", all(c.choices and not c.usage for c in chunks))
chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
check("stream usage is last", not chunks[-1].choices and chunks[-1].usage.completion_tokens == r.usage.completion_tokens, chunks[-1])
check("stream usage is once", sum(bool(c.usage) for c in chunks) == 1)
check("stream caches", chunks[-1].usage.prompt_tokens == r.usage.prompt_tokens, chunks[-1])
with client.chat.completions.create(**{**ask, "max_tokens": 2000}, stream=True) as s:
    next(iter(s))
check("a stream that is left", client.chat.completions.create(**ask).choices[0].message.content in right)
whole = {**ask, "max_tokens": 400}
with client.chat.completions.stream(**whole) as s:
    check("stream helper", s.get_final_completion().choices[0].message.content in texts(whole))

# Tools.
r = client.chat.completions.create(**ask, tools=[tool], tool_choice="required")
call = r.choices[0].message.tool_calls[0]
check("tool call", call.function.name == "look" and r.choices[0].finish_reason in ("tool_calls", "length"), r)
named = {**ask, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "function", "function": {"name": "look"}}}
call = client.chat.completions.create(**named).choices[0].message.tool_calls[0]
parts = [d for c in client.chat.completions.create(**named, stream=True) for d in c.choices[0].delta.tool_calls or []]
check("tool call in a stream", parts[0].id and json.loads("".join(p.function.arguments or "" for p in parts))["query"], parts)
after = hello + [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}, {"role": "tool", "tool_call_id": call.id, "content": "42"}]
check("tool result", client.chat.completions.create(**{**ask, "messages": after}).choices[0].message.content)

# Completions and models.
once = {"model": "sim", "prompt": "Once upon a time", "max_tokens": 12}
told = texts(once, "/v1/completions")
r = client.completions.create(**once)
check("completion", r.choices[0].text in told and r.object == "text_completion", r)
check("completion stream", "".join(c.choices[0].text for c in client.completions.create(**once, stream=True)) in told)
check("completion of two prompts", len(client.completions.create(model="sim", prompt=["one", "two"], max_tokens=4).choices) == 2)
check("models", [m.id for m in client.models.list()] == ["sim"])
check("one model", client.models.retrieve("sim").id == "sim")

# Errors.
raises("unknown model", openai.NotFoundError, lambda: client.chat.completions.create(**{**ask, "model": "gone"}), code="model_not_found", status_code=404)
raises("unknown model retrieved", openai.NotFoundError, lambda: client.models.retrieve("gone"), code="model_not_found")
raises("no messages", openai.BadRequestError, lambda: client.chat.completions.create(**{**ask, "messages": None}), status_code=400)
raises("wrong type", openai.BadRequestError, lambda: client.chat.completions.create(**ask, extra_body={"stream": "yes"}), param="stream")
raises("too large", openai.APIStatusError, lambda: client.chat.completions.create(**{**ask, "messages": [{"role": "user", "content": "x" * (2 << 20)}]}), status_code=413)
raises("no such path", openai.NotFoundError, lambda: client.embeddings.create(model="sim", input="x"), status_code=404)
raises("the worker's own refusal", openai.BadRequestError, lambda: client.chat.completions.create(**{**ask, "max_tokens": -1}), status_code=400)

# Keys.
keyed = openai.OpenAI(base_url=KEYED + "/v1", api_key=KEY, max_retries=0)
check("with a key", keyed.chat.completions.create(**ask).choices[0].message.content in right)
for key in ("wrong", KEY + "x", KEY[:-1]):
    raises("wrong key", openai.AuthenticationError, lambda: keyed.with_options(api_key=key).chat.completions.create(**ask), status_code=401)
raises("wrong key, models", openai.AuthenticationError, lambda: keyed.with_options(api_key="wrong").models.list())
raises("model that is allowed and gone", openai.NotFoundError, lambda: keyed.chat.completions.create(**{**ask, "model": "gone"}))
raises("model that is not allowed", openai.APIStatusError, lambda: keyed.chat.completions.create(**{**ask, "model": "other"}))

# Timeouts and retries.
long = {**ask, "max_tokens": 3000, "extra_body": {"ignore_eos": True}}
began = time.monotonic()
raises("timeout", openai.APITimeoutError, lambda: client.with_options(timeout=0.5).chat.completions.create(**long))
check("timeout in time", time.monotonic() - began < 5)
fault(status=429, retry_after=1)
e = raises("429", openai.RateLimitError, lambda: client.chat.completions.create(**ask), status_code=429)
check("429 has Retry-After", e is not None and e.response.headers.get("retry-after") == "1")
fault(status=500)
raises("500", openai.InternalServerError, lambda: client.chat.completions.create(**ask), status_code=500)
fault(reset=True)
raises("both workers die", openai.InternalServerError, lambda: client.chat.completions.create(**ask), status_code=502)
fault(die_after=3)


def read():
    for _ in client.chat.completions.create(**ask, stream=True):
        pass


raises("a stream that breaks off", Exception, read)  # of the HTTP library: the SDK wraps none
fault(status=503, rate=0.5)
retrying = client.with_options(max_retries=10)
check("retries", all(retrying.chat.completions.create(**ask).choices[0].message.content in right for _ in range(5)))
fault()
check("well again", retrying.chat.completions.create(**ask).choices[0].message.content in right)

finish(f"openai-python {openai.__version__}")
