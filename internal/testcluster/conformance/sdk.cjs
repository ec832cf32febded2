// OpenAI's JavaScript SDK against the proxy.
'use strict';
const OpenAI = require('openai').default ?? require('openai');
const { version } = JSON.parse(require('fs').readFileSync(process.env.NODE_PATH + '/openai/package.json'));
const { OPEN, KEYED, KEY } = process.env;

let passed = 0;
const failed = [];
function check(what, ok, detail = '') {
  if (ok) passed++;
  else {
    failed.push(what);
    console.error(`FAILED: ${what}: ${JSON.stringify(detail)}`.slice(0, 800));
  }
}
async function raises(what, kind, status, call) {
  try {
    check(what, false, await call());
  } catch (e) {
    check(what, e instanceof kind && e.status === status, `${e.constructor.name} ${e.status} ${e.message}`);
    return e;
  }
}

async function main() {
  const client = new OpenAI({ baseURL: OPEN + '/v1', apiKey: 'any', maxRetries: 0, timeout: 30000 });
  const messages = [{ role: 'user', content: 'Say something, in JavaScript.' }];
  const ask = { model: 'sim', messages, max_tokens: 20 };
  const collect = async (stream) => { const all = []; for await (const c of stream) all.push(c); return all; };

  const workers = (await (await fetch(process.env.OPEN_ADMIN + '/debug/workers')).json()).workers.map((w) => w.url);
  const post = async (url, body) => (await fetch(url, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) })).text();
  // Each worker has replies of its own.
  const texts = async (path, body) => (await Promise.all(workers.map((w) => post(w + path, body)))).map((t) => JSON.parse(t).choices[0]).map((c) => c.text ?? c.message.content);
  const right = await texts('/v1/chat/completions', ask);

  const r = await client.chat.completions.create(ask);
  check('chat', right.includes(r.choices[0].message.content) && r.choices[0].finish_reason, r);
  check('chat usage', r.usage.total_tokens === r.usage.prompt_tokens + r.usage.completion_tokens, r.usage);
  check('request id', r._request_id, r);

  let chunks = await collect(await client.chat.completions.create({ ...ask, stream: true }));
  check('stream text', right.includes(chunks.map((c) => c.choices[0].delta.content ?? '').join('')));
  check('stream without usage', chunks.every((c) => c.choices.length && !c.usage));
  chunks = await collect(await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }));
  check('stream usage', chunks.at(-1).usage?.completion_tokens === r.usage.completion_tokens, chunks.at(-1));
  for await (const c of await client.chat.completions.create({ ...ask, max_tokens: 2000, stream: true })) { check('a stream that is left', c); break; }
  const whole = { ...ask, max_tokens: 400 };
  const final = await client.chat.completions.stream(whole).finalChatCompletion();
  check('stream helper', (await texts('/v1/chat/completions', whole)).includes(final.choices[0].message.content), final);

  const tools = [{ type: 'function', function: { name: 'look', parameters: { type: 'object', properties: { query: { type: 'string' } } } } }];
  const named = { ...ask, max_tokens: 200, tools, tool_choice: { type: 'function', function: { name: 'look' } } };
  const call = (await client.chat.completions.create(named)).choices[0].message.tool_calls[0];
  check('tool call', call.function.name === 'look', call);
  chunks = await collect(await client.chat.completions.create({ ...named, stream: true }));
  check('tool call in a stream', chunks.flatMap((c) => c.choices[0].delta.tool_calls ?? []).map((t) => t.function.arguments ?? '').join('').startsWith('{"query"'));

  const once = { model: 'sim', prompt: 'Once upon a time', max_tokens: 12 };
  const told = await texts('/v1/completions', once);
  const done = await client.completions.create(once);
  check('completion', told.includes(done.choices[0].text), done);
  chunks = await collect(await client.completions.create({ ...once, stream: true }));
  check('completion stream', told.includes(chunks.map((c) => c.choices[0].text).join('')));
  check('models', (await client.models.list()).data.map((m) => m.id).join() === 'sim');
  check('one model', (await client.models.retrieve('sim')).id === 'sim');

  const e = await raises('unknown model', OpenAI.NotFoundError, 404, () => client.chat.completions.create({ ...ask, model: 'gone' }));
  check('unknown model has its code', e?.code === 'model_not_found', e);
  await raises('no messages', OpenAI.BadRequestError, 400, () => client.chat.completions.create({ ...ask, messages: null }));
  await raises('too large', OpenAI.APIError, 413, () => client.chat.completions.create({ ...ask, messages: [{ role: 'user', content: 'x'.repeat(2 << 20) }] }));
  await raises('no such path', OpenAI.NotFoundError, 404, () => client.embeddings.create({ model: 'sim', input: 'x' }));
  await raises('timeout', OpenAI.APIConnectionTimeoutError, undefined, () => client.chat.completions.create({ ...ask, max_tokens: 3000, ignore_eos: true }, { timeout: 500 }));
  const stop = new AbortController();
  setTimeout(() => stop.abort(), 300);
  await raises('abort', OpenAI.APIUserAbortError, undefined, () => client.chat.completions.create({ ...ask, max_tokens: 3000, ignore_eos: true }, { signal: stop.signal }));

  const keyed = new OpenAI({ baseURL: KEYED + '/v1', apiKey: KEY, maxRetries: 0 });
  check('with a key', right.includes((await keyed.chat.completions.create(ask)).choices[0].message.content));
  await raises('wrong key', OpenAI.AuthenticationError, 401, () => new OpenAI({ baseURL: KEYED + '/v1', apiKey: 'wrong', maxRetries: 0 }).chat.completions.create(ask));

  const fault = (f) => Promise.all(workers.map((w) => post(w + '/fault', f)));
  await fault({ die_after: 3 });
  try {
    await collect(await client.chat.completions.create({ ...ask, stream: true }));
    check('a stream that breaks off', false);
  } catch (e) {
    check('a stream that breaks off', true);
  }
  await fault({ status: 503, rate: 0.5 });
  for (let i = 0; i < 5; i++) check('retries', right.includes((await client.chat.completions.create(ask, { maxRetries: 10 })).choices[0].message.content));
  await fault({});
}

main().then(() => {
  console.log(`openai-node ${version}, node ${process.version}: ${passed} of ${passed + failed.length} checks pass`);
  process.exit(failed.length || !passed ? 1 : 0);
}, (e) => { console.error(e); process.exit(1); });
