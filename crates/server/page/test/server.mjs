// A mock server to develop and test the page with: the same API, with an invented model.
//
//   node crates/server/page/test/server.mjs [--port 8090] [--speed 60] [--shape 40x256x8] [--mode streaming]
//
// Its answers depend on words in the last message (see ANSWERS). `POST /mock` with {"loading", "key", "busy", "down"}
// sets the states that the page has to handle. Tests of the server never use it.

import { createReadStream, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript; charset=utf-8', '.css': 'text/css; charset=utf-8', '.svg': 'image/svg+xml' };
const CONTEXT = 32_768;

const TOUR = `# A short tour

Markdown comes **as it streams**, with *emphasis*, ~~second thoughts~~, \`inline code\` and [links](https://example.org/docs).

## What a mill does

1. Water turns the wheel
   - slowly in summer
   - fast in spring
2. The wheel turns the stone
3. The stone grinds the grain

| part | material | age |
|:-----|:--------:|----:|
| wheel | oak | 12 |
| stone | basalt | 140 |

> A mill cannot grind with the water that is past.

\`\`\`rust
/// Grinds as much as the water allows.
fn grind(grain: &mut Vec<f32>, water: f32) -> usize {
    let mut ground = 0;
    while let Some(weight) = grain.pop() {
        if weight > water { break; } // too heavy
        ground += 1;
    }
    println!("ground {ground} sacks");
    ground
}
\`\`\`

- [x] water
- [ ] grain

---

That is all there is to it.`;

const HOSTILE = `<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">

[click](javascript:window.hacked=3) [data](data:text/html,<script>window.hacked=4</script>) [space]( java\tscript:window.hacked=5 )

![image](https://evil.example/pixel.png) <https://evil.example/"onmouseover="window.hacked=6>

\`\`\`html
<iframe srcdoc="<script>parent.hacked = 7</script>"></iframe>
\`\`\`

| <svg onload=window.hacked=8> | "><b>x</b> |
|---|---|
| <style>*{display:none}</style> | &lt;script&gt;window.hacked=9&lt;/script&gt; |

# <h1 onclick="window.hacked=10">heading</h1>

<form action="https://evil.example"><input name=q></form> <base href="https://evil.example/"> <meta http-equiv=refresh content="0;url=https://evil.example">

[a](https://ok.example/"onclick="window.hacked=11) [b](vbscript:x) [c](//evil.example) \`<b>\` **<i onclick=window.hacked=12>**`;

const STORY = 'Once there was a fox who found a lantern by the mill. The lantern was old, and its glass was cracked, but when the wind blew over the stream it began to glow. "Who lit you?" asked the fox. "You did," said the lantern, "by asking." So the fox carried it along the bank, past the wheel and the sleeping ducks, and wherever they went the dark made room for them.';

/** [word in the last message, answer]; the first that occurs wins. */
const ANSWERS = [
  ['xss', { text: HOSTILE }],
  ['rtl', { text: 'שלום עולם\n\n- אחד\n- שתיים\n\n> ציטוט\n\n```\ncode\n```' }],
  ['tour', { text: TOUR }],
  ['think', { reasoning: 'The user wants me to think. A mill needs **water**, so I should say that first, and then why the stone turns.\n\nThat seems right.', text: 'Water pushes the wheel, the wheel turns the stone.' }],
  ['weather', { text: 'Let me look.', calls: [{ name: 'get_weather', arguments: { city: 'Bergen', days: 3, units: 'metric' } }] }],
  ['long', { text: `${STORY}\n\n`.repeat(40) }],
  ['break', { text: STORY, breaks: true }],
  ['fail', { text: STORY, fails: true }],
];

const flags = { loading: false, key: '', busy: 0, down: false };
const options = Object.fromEntries(process.argv.slice(2).join(' ').split('--').filter(Boolean).map((part) => part.trim().split(/\s+/)));
const [LAYERS, EXPERTS, PER_TOKEN] = (options.shape ?? '40x256x8').split('x').map(Number);
const MODE = options.mode ?? 'streaming';
const SLOTS = MODE === 'resident' ? LAYERS * EXPERTS : Math.round(LAYERS * EXPERTS * 0.27);
const folder = join(dirname(fileURLToPath(import.meta.url)), '..');
const speed = Number(options.speed ?? 60);
const machine = { active: 0, prefilling: 0, decoded: 0, prefilled: 0, cached: new Map() };
const resident = new Uint8Array(LAYERS * EXPERTS);
const stamps = new Float64Array(LAYERS * EXPERTS);
const kept = [];
const shuffled = Array.from({ length: LAYERS }, () => Array.from({ length: EXPERTS }, (_, expert) => [Math.random(), expert]).sort((a, b) => a[0] - b[0]).map(([, expert]) => expert));
let clock = 0;
let pending = { hits: new Map(), reads: [], wanted: 0 };
for (let token = 0; token < 400; token += 1) touch();
if (MODE === 'resident') resident.fill(1);
pending = { hits: new Map(), reads: [], wanted: 0 };

/** Some experts are used more often than others, different ones in each layer. */
function popular(layer) {
  const normal = Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  return shuffled[layer][Math.min(EXPERTS - 1, Math.floor(Math.abs(normal) * EXPERTS * 0.16))];
}

/** Uses an expert; returns whether it was in memory. Evicts the least recently used of a random few. */
function keep(index) {
  clock += 1;
  stamps[index] = clock;
  if (resident[index]) return true;
  resident[index] = 1;
  kept.push(index);
  if (kept.length > SLOTS) {
    let oldest = 0;
    for (let tries = 0; tries < 24; tries += 1) {
      const at = Math.floor(Math.random() * kept.length);
      if (stamps[kept[at]] < stamps[kept[oldest]]) oldest = at;
    }
    resident[kept[oldest]] = 0;
    kept[oldest] = kept.at(-1);
    kept.pop();
  }
  return false;
}

/** One token passes all layers. */
function touch() {
  for (let layer = 0; layer < LAYERS; layer += 1) {
    for (let rank = 0; rank < PER_TOKEN; rank += 1) {
      const expert = popular(layer);
      const id = layer * EXPERTS + expert;
      pending.wanted += 1;
      if (!keep(id)) pending.reads.push([layer, expert]);
      pending.hits.set(id, (pending.hits.get(id) ?? 0) + 1);
    }
  }
}

const wait = (milliseconds) => new Promise((resolve) => {
  setTimeout(resolve, milliseconds);
});

function json(response, status, value, headers = {}) {
  response.writeHead(status, { 'Content-Type': 'application/json', ...headers });
  response.end(JSON.stringify(value));
}

function refuse(response, status, code, message, headers) {
  json(response, status, { error: { message, type: status < 500 ? 'invalid_request_error' : 'server_error', param: null, code } }, headers);
}

async function body(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts).toString('utf8') || '{}');
}

async function chat(request, response) {
  const asked = await body(request);
  if (flags.busy > 0) {
    flags.busy -= 1;
    return refuse(response, 503, 'overloaded', 'the queue is full: 64 requests are waiting', { 'Retry-After': '2' });
  }
  const last = asked.messages.at(-1);
  const words = asked.messages.map((message) => message.content ?? '').join(' ');
  const promptTokens = Math.ceil(words.length / 4) + 8 * asked.messages.length;
  if (String(last.content).includes('overflow')) {
    return refuse(response, 400, 'context_length_exceeded', `the prompt has 41237 tokens, the context holds ${CONTEXT}`);
  }
  const answer = ANSWERS.find(([word]) => last.role === 'user' && String(last.content).toLowerCase().includes(word))?.[1] ?? { text: STORY };
  let open = true;
  response.on('close', () => {
    open = false;
  });
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  const id = `chatcmpl-${Math.random().toString(36).slice(2)}`;
  const send = (value) => response.write(`data: ${JSON.stringify(value)}\n\n`);
  const chunk = (delta, finish = null, more = {}) => send({ id, object: 'chat.completion.chunk', created: Math.floor(Date.now() / 1000), model: 'Qwen3.5-35B-A3B-4bit', choices: [{ index: 0, delta, finish_reason: finish }], ...more });

  machine.active += 1;
  machine.prefilling += 1;
  const cachedTokens = asked.messages.length > 1 ? Math.floor((promptTokens * 0.9) / 64) * 64 : 0;
  const started = Date.now();
  const steps = 6;
  for (let step = 1; step <= steps && open; step += 1) {
    await wait(400 / speed * 6);
    machine.prefilled += Math.ceil((promptTokens - cachedTokens) / steps);
    for (let count = 0; count < 3; count += 1) touch();
    if (request.headers['x-prefill-progress']) response.write(`event: prefill_progress\ndata: ${JSON.stringify({ done: Math.round((promptTokens * step) / steps), total: promptTokens, cached: cachedTokens })}\n\n`);
    else response.write(': still reading\n\n');
  }
  machine.prefilling -= 1;
  const prefillSeconds = (Date.now() - started) / 1000;

  const begun = Date.now();
  let tokens = 0;
  const stream = async (text, field) => {
    for (const piece of text.match(/\s*\S{1,5}|\s+/g) ?? []) {
      if (!open) return;
      if (answer.breaks && tokens > 20) return response.destroy();
      if (answer.fails && tokens > 20) {
        open = false;
        send({ error: { message: 'reading expert 17 of layer 3 failed: input/output error', type: 'server_error', code: 'read_failed' } });
        response.end();
        return;
      }
      chunk({ [field]: piece });
      tokens += 1;
      machine.decoded += 1;
      touch();
      if (tokens >= (asked.max_tokens ?? Infinity)) return;
      await wait(1000 / speed);
    }
  };
  chunk({ role: 'assistant', content: '' });
  if (answer.reasoning && asked.enable_thinking !== false) await stream(answer.reasoning, 'reasoning_content');
  await stream(asked.response_format ? '{"mill": "stream", "stones": 2}' : asked.temperature > 0 && asked.seed === undefined && answer.text === STORY ? `${STORY} (${Math.floor(Math.random() * 1000)})` : answer.text, 'content');
  for (const [index, call] of (answer.calls ?? []).entries()) {
    if (open) chunk({ tool_calls: [{ index, id: `call_${index}`, type: 'function', function: { name: call.name, arguments: '' } }] });
    for (const piece of JSON.stringify(call.arguments).match(/.{1,6}/g)) {
      if (open) chunk({ tool_calls: [{ index, function: { arguments: piece } }] });
      await wait(1000 / speed);
    }
  }
  machine.active -= 1;
  if (!open) return undefined;
  const seconds = (Date.now() - begun) / 1000;
  chunk({}, answer.calls ? 'tool_calls' : tokens >= (asked.max_tokens ?? Infinity) ? 'length' : 'stop');
  send({
    id, object: 'chat.completion.chunk', model: 'Qwen3.5-35B-A3B-4bit', choices: [],
    usage: { prompt_tokens: promptTokens, completion_tokens: tokens, total_tokens: promptTokens + tokens, prompt_tokens_details: { cached_tokens: cachedTokens } },
    timings: { prefill_seconds: prefillSeconds, prefill_tok_s: promptTokens / prefillSeconds, decode_seconds: seconds, decode_tok_s: tokens / seconds },
  });
  response.end('data: [DONE]\n\n');
  return undefined;
}

// Beats are made once for all listeners, as in the server.
const listeners = new Set();
let lastBeat = Date.now();
let sinceDecoded = 0;
let sincePrefilled = 0;
setInterval(() => {
  const now = Date.now();
  const idle = machine.active === 0 && pending.wanted === 0;
  if (idle && now - lastBeat < 2000) return;
  const seconds = (now - lastBeat) / 1000;
  lastBeat = now;
  const bits = new Uint8Array(Math.ceil(resident.length / 8));
  resident.forEach((bit, index) => {
    bits[index >> 3] |= bit << (index & 7);
  });
  const reads = pending.reads.length;
  const beat = {
    t: now / 1000,
    prefill_tok_s: (machine.prefilled - sincePrefilled) / seconds,
    decode_tok_s: (machine.decoded - sinceDecoded) / seconds,
    active: machine.active, prefilling: machine.prefilling, queued: 0, limit: 64,
    pool: { pages: 512, free: 512 - machine.active * 21 - 40 }, cache: { entries: 3, tokens: 2560 },
    memory_bytes: 8.1e9 + Math.sin(now / 4000) * 5e7,
    hit_rate: pending.wanted ? 1 - reads / pending.wanted : null,
    read_bytes_s: (reads * 1_769_472) / seconds, disk_bytes_s: 7.1e9,
    grid: { resident: Buffer.from(bits).toString('base64'), hits: [...pending.hits].slice(0, 2000).map(([place, count]) => [Math.floor(place / EXPERTS), place % EXPERTS, count]), reads: pending.reads.slice(0, 500) },
    speculation: machine.decoded ? { acceptance: 0.71, gain: 1.42 } : null,
  };
  sinceDecoded = machine.decoded;
  sincePrefilled = machine.prefilled;
  pending = { hits: new Map(), reads: [], wanted: 0 };
  for (const listener of listeners) listener.write(`event: beat\ndata: ${JSON.stringify(beat)}\n\n`);
}, 250).unref();

function live(response) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  const hello = {
    model: 'Qwen3.5-35B-A3B-4bit', mode: MODE, context: CONTEXT, parallel: 8,
    experts: { layers: LAYERS, experts: EXPERTS, experts_per_token: PER_TOKEN, slots: SLOTS },
    plan: {
      rows: [
        { name: 'weights every token uses', bytes: 1.6e9, note: '40 layers' },
        { name: 'expert slots', bytes: 5.6e9, note: `${SLOTS} kept of ${LAYERS * EXPERTS}, 17 to pass through` },
        { name: 'keys and values', bytes: 671.1e6, note: '32768 positions, 20480 bytes each' },
        { name: 'recurrent state', bytes: 65.9e6, note: '8 sequences' },
        { name: 'activations', bytes: 491.6e6, note: 'prefill 2048 tokens at a time' },
        { name: 'program', bytes: 201.3e6, note: 'tokenizer, threads, program' },
      ],
      total_bytes: 8.63e9, budget_bytes: 9.0e9,
    },
  };
  response.write(`event: hello\ndata: ${JSON.stringify(hello)}\n\n`);
  listeners.add(response);
  response.on('close', () => listeners.delete(response));
}

function page(path, response) {
  const name = path === '/' ? 'index.html' : path.slice(1);
  if (!/^[\w-]+\.\w+$/.test(name) || !TYPES[extname(name)]) return refuse(response, 404, 'not_found', 'there is nothing here');
  try {
    readFileSync(join(folder, name));
  } catch {
    return refuse(response, 404, 'not_found', 'there is nothing here');
  }
  response.writeHead(200, { 'Content-Type': TYPES[extname(name)], 'Content-Security-Policy': POLICY, 'X-Content-Type-Options': 'nosniff' });
  return createReadStream(join(folder, name)).pipe(response);
}

const server = createServer(async (request, response) => {
  try {
    const path = new URL(request.url, 'http://mock').pathname;
    if (path === '/mock') {
      Object.assign(flags, await body(request));
      return json(response, 200, { ...flags, live: listeners.size });
    }
    if (flags.down) return request.socket.destroy();
    if (request.method === 'GET' && (path === '/' || extname(path))) return page(path, response);
    if (path === '/health') return flags.loading ? json(response, 503, { status: 'loading', model: 'Qwen3.5-35B-A3B-4bit' }) : json(response, 200, { status: 'ok', model: 'Qwen3.5-35B-A3B-4bit', mode: MODE });
    if (flags.key && request.headers.authorization !== `Bearer ${flags.key}`) return refuse(response, 401, 'invalid_api_key', 'this server needs a key');
    if (path === '/v1/models') return json(response, 200, { object: 'list', data: [{ id: 'Qwen3.5-35B-A3B-4bit', object: 'model', context_length: CONTEXT }] });
    if (path === '/live') return live(response);
    if (path === '/v1/chat/completions' && request.method === 'POST') return await chat(request, response);
    return refuse(response, 404, 'not_found', `there is no ${path}`);
  } catch (error) {
    if (!response.headersSent) return refuse(response, 400, 'bad_request', error.message);
    return response.destroy();
  }
});
server.listen(Number(options.port ?? 8090), '127.0.0.1', () => console.log(JSON.stringify({ event: 'ready', url: `http://127.0.0.1:${server.address().port}/` })));
