// The stream behind the panel: /live, opened only while somebody looks.
//
// `fetch` and not EventSource, because the key has to travel in a header. It closes when the panel is hidden or the tab
// is, and comes back by itself after a break.

import { request } from './api.js';
import { readEvents } from './sse.js';

const PAUSES_MS = [500, 1_000, 2_000, 5_000];
/** A stream that says nothing for so long is dead: the server beats every two seconds when idle. */
const SILENCE_MAX_MS = 12_000;

/** Reads /live while wanted and the tab is visible. Listeners: hello(value), beat(value), state('off' | 'waiting' | 'on'). */
export class LiveStream {
  constructor(listeners) {
    this.listeners = listeners;
    this.wanted = false;
    this.abort = null;
    document.addEventListener('visibilitychange', () => this.update());
  }

  /** Says whether anybody looks. */
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
      // Given up when silent, without ending the loop.
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
        // Whatever it was, the panel waits and asks again.
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
