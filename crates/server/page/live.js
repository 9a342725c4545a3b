// The stream behind the panel: /live, open only while the panel is visible.
//
// `fetch` and not EventSource, because the key is sent in a header. It closes when the panel or the tab is hidden, and
// reconnects after an interruption.

import { request } from './api.js';
import { readEvents } from './sse.js';

const PAUSES_MS = [500, 1_000, 2_000, 5_000];
/** A stream without events for so long is dead: an idle server sends one every two seconds. */
const SILENCE_MAX_MS = 12_000;

/** Reads /live while wanted and the tab is visible. Listeners: hello(value), beat(value), state('off' | 'waiting' | 'on'). */
export class LiveStream {
  constructor(listeners) {
    this.listeners = listeners;
    this.wanted = false;
    this.abort = null;
    document.addEventListener('visibilitychange', () => this.update());
  }

  /** Sets whether the panel is visible. */
  want(wanted) {
    this.wanted = wanted;
    this.update();
  }

  update() {
    const open = this.wanted && !document.hidden;
    if (open && !this.abort) {
      this.abort = new AbortController();
      this.run(this.abort.signal);
    } else if (!open && this.abort) {
      this.abort.abort();
      this.abort = null;
      this.listeners.state('off');
    }
  }

  async run(signal) {
    let failures = 0;
    while (!signal.aborted) {
      this.listeners.state('waiting');
      // Aborted when silent, without ending the loop.
      const attempt = new AbortController();
      const end = () => attempt.abort();
      signal.addEventListener('abort', end);
      let watchdog = setTimeout(end, SILENCE_MAX_MS);
      try {
        const response = await request('live', { signal: attempt.signal, headers: { Accept: 'text/event-stream' } });
        for await (const { event, data } of readEvents(response.body)) {
          clearTimeout(watchdog);
          watchdog = setTimeout(end, SILENCE_MAX_MS);
          failures = 0;
          if (signal.aborted) break;
          if (event === 'hello') {
            this.listeners.hello(JSON.parse(data));
            this.listeners.state('on');
          } else if (event === 'beat') this.listeners.beat(JSON.parse(data));
        }
      } catch {
        // Any failure is retried after a pause.
      }
      clearTimeout(watchdog);
      signal.removeEventListener('abort', end);
      if (signal.aborted) return;
      this.listeners.state('waiting');
      await new Promise((resolve) => {
        setTimeout(resolve, PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]);
      });
      failures += 1;
    }
  }
}
