// One answer being generated: sends the request, fills the message, reports changes.
//
// It continues while another conversation is open. A busy server (503) is retried after its Retry-After; every
// other failure ends the answer with its facts in `message.error`. The text received until then is kept.

import { ApiError, chat } from './api.js';

const BUSY_RETRIES_MAX = 20;

/** Runs a request and writes into `message`. `watch(generation, change)` is called with 'state' | 'content' | 'reasoning' | 'calls' | 'done'. */
export class Generation {
  constructor(conversation, message, body, watch) {
    this.conversation = conversation;
    this.message = message;
    this.body = body;
    this.watch = watch;
    this.abort = new AbortController();
    /** 'waiting', 'prefill', 'thinking', 'answering', 'busy' or 'done'. */
    this.phase = 'waiting';
    this.progress = null;
    this.retryAt = 0;
    this.started = performance.now();
    this.firstAt = null;
    this.lastAt = null;
    this.pieces = 0;
    this.thinkingSince = null;
  }

  /** Stops the answer; the text so far is kept. */
  stop() {
    this.abort.abort();
  }

  /** Runs to the end; never throws. */
  async run() {
    const { message } = this;
    try {
      for (let attempt = 0; ; attempt += 1) {
        try {
          await this.read();
          break;
        } catch (error) {
          if (!(error instanceof ApiError) || error.status !== 503 || this.firstAt !== null || attempt >= BUSY_RETRIES_MAX) throw error;
          await this.waitBusy(error.retryAfter ?? 5);
        }
      }
    } catch (error) {
      if (error.name === 'AbortError') message.stopped = true;
      else message.error = { message: error.message, code: error.code || (error.status ? `status_${error.status}` : 'unreachable') };
      this.failure = error;
    }
    this.endThinking();
    delete message.pending;
    this.measure();
    this.enter('done');
    this.watch(this, 'done');
  }

  async read() {
    this.enter('waiting');
    this.started = performance.now();
    for await (const { kind, value } of chat(this.body, this.abort.signal)) {
      if (kind === 'progress') {
        this.progress = value;
        if (this.firstAt === null) this.enter('prefill');
        continue;
      }
      this.take(value);
    }
  }

  take(chunk) {
    const { message } = this;
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.timings) this.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    if (typeof delta.reasoning_content === 'string' && delta.reasoning_content !== '') {
      this.count();
      this.thinkingSince ??= performance.now();
      message.reasoning = (message.reasoning ?? '') + delta.reasoning_content;
      this.enter('thinking');
      this.watch(this, 'reasoning');
    }
    if (typeof delta.content === 'string' && delta.content !== '') {
      this.count();
      this.endThinking();
      message.content += delta.content;
      this.enter('answering');
      this.watch(this, 'content');
    }
    if (Array.isArray(delta.tool_calls)) {
      this.count();
      this.endThinking();
      this.takeCalls(delta.tool_calls);
      this.enter('answering');
      this.watch(this, 'calls');
    }
    if (choice.finish_reason) message.finish = choice.finish_reason;
  }

  takeCalls(deltas) {
    const calls = (this.message.calls ??= []);
    for (const delta of deltas) {
      const index = Number.isInteger(delta.index) && delta.index >= 0 && delta.index < 128 ? delta.index : calls.length;
      while (calls.length <= index) calls.push({ id: '', name: '', arguments: '' });
      const call = calls[index];
      if (delta.id) call.id = String(delta.id);
      if (delta.function?.name) call.name += String(delta.function.name);
      if (delta.function?.arguments) call.arguments += String(delta.function.arguments);
    }
  }

  count() {
    this.lastAt = performance.now();
    this.firstAt ??= this.lastAt;
    this.pieces += 1;
  }

  endThinking() {
    if (this.thinkingSince === null) return;
    this.message.thoughtSeconds = (performance.now() - this.thinkingSince) / 1000;
    this.thinkingSince = null;
  }

  waitBusy(seconds) {
    this.retryAt = Date.now() + seconds * 1000;
    this.enter('busy');
    return new Promise((resolve, reject) => {
      const end = () => {
        clearTimeout(timer);
        reject(new DOMException('stopped', 'AbortError'));
      };
      const timer = setTimeout(() => {
        this.abort.signal.removeEventListener('abort', end);
        resolve();
      }, seconds * 1000);
      this.abort.signal.addEventListener('abort', end, { once: true });
    });
  }

  measure() {
    const stats = {};
    const { usage, timings } = this;
    const put = (name, value) => {
      if (Number.isFinite(value)) stats[name] = value;
    };
    if (this.firstAt !== null) put('firstSeconds', (this.firstAt - this.started) / 1000);
    put('tokens', usage?.completion_tokens);
    put('promptTokens', usage?.prompt_tokens);
    put('cachedTokens', usage?.prompt_tokens_details?.cached_tokens);
    put('rate', timings?.decode_tok_s);
    put('prefillRate', timings?.prefill_tok_s);
    const seconds = this.firstAt === null ? 0 : (this.lastAt - this.firstAt) / 1000;
    if (stats.rate === undefined && seconds > 0.05 && stats.tokens > 1) put('rate', (stats.tokens - 1) / seconds);
    if (stats.tokens === undefined && this.pieces) put('pieces', this.pieces);
    this.message.stats = stats;
  }

  enter(phase) {
    const changed = this.phase !== phase;
    this.phase = phase;
    if (changed || phase === 'prefill') this.watch(this, 'state');
  }
}
