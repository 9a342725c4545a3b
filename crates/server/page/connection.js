// The state of the server, polled from /health.
//
// States: connecting, loading (the model is being read), locked (a key is required), gone, ready. Polls often while the
// server is not ready, seldom while it is, and not at all in a hidden tab.

import { request, requestJson } from './api.js';

const READY_INTERVAL_MS = 20_000;
const LOADING_INTERVAL_MS = 1_000;
const GONE_INTERVALS_MS = [1_000, 2_000, 4_000, 8_000, 15_000];

/** Watches the server and calls `changed(connection)` at every change of state. */
export class Connection {
  constructor(changed) {
    this.changed = changed;
    this.state = 'connecting';
    this.model = null;
    this.contextLength = null;
    this.health = null;
    this.retryAt = 0;
    this.failures = 0;
    this.timer = 0;
    this.checking = null;
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) clearTimeout(this.timer);
      else this.check();
    });
  }

  /** Polls now; concurrent calls share one request. */
  check() {
    this.checking ??= this.ask().finally(() => {
      this.checking = null;
    });
    return this.checking;
  }

  async ask() {
    clearTimeout(this.timer);
    try {
      const response = await request('health', { accept: [503] });
      const health = await response.json().catch(() => ({}));
      this.health = health;
      this.failures = 0;
      if (health.status === 'loading') return this.become('loading', LOADING_INTERVAL_MS);
      if (!response.ok) return this.fail();
      if (this.state !== 'ready' || !this.model) {
        const models = await requestJson('v1/models');
        const first = models.data?.[0] ?? {};
        this.model = typeof first.id === 'string' ? first.id : String(health.model ?? 'model');
        this.contextLength = Number.isFinite(first.context_length) ? first.context_length : null;
      }
      return this.become('ready', READY_INTERVAL_MS);
    } catch (error) {
      if (error.status === 401) return this.become('locked', 0);
      return this.fail();
    }
  }

  /** A request was refused without a valid key, which /health, open without one, does not show. */
  lock() {
    clearTimeout(this.timer);
    this.become('locked', 0);
  }

  fail() {
    const wait = GONE_INTERVALS_MS[Math.min(this.failures, GONE_INTERVALS_MS.length - 1)];
    this.failures += 1;
    this.become('gone', wait);
  }

  become(state, wait) {
    const before = this.state;
    this.state = state;
    this.retryAt = wait ? Date.now() + wait : 0;
    if (wait && !document.hidden) this.timer = setTimeout(() => this.check(), wait);
    if (before !== state || state === 'gone' || state === 'loading') this.changed(this);
  }
}
