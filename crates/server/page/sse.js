// Server-sent events: bytes cut anywhere become events.
//
// Follows the WHATWG event stream format: any of the three line ends, comments, several data lines.
// It does not reconnect; callers do. The one invariant: events do not depend on how the stream is cut.

/** An event longer than this ends the stream with an error: a broken server must not fill the memory. */
const EVENT_LENGTH_MAX = 16 * 1024 * 1024;

/** Turns pieces of text into events { event, data }. */
export class EventParser {
  constructor() {
    this.buffer = '';
    this.data = [];
    this.length = 0;
    this.event = '';
    this.started = false;
    this.afterReturn = false;
  }

  /** Takes a piece of the stream and returns the events it completes. */
  push(piece) {
    const events = [];
    let text = piece;
    if (!this.started && text !== '') {
      this.started = true;
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
    }
    let from = 0;
    for (let at = 0; at < text.length; at += 1) {
      const char = text.charCodeAt(at);
      if (char !== 10 && char !== 13) {
        this.afterReturn = false;
        continue;
      }
      // The \n of a \r\n that was cut in the middle, or not, ends no second line.
      if (char === 10 && this.afterReturn) {
        this.afterReturn = false;
        from = at + 1;
        continue;
      }
      this.afterReturn = char === 13;
      this.line(this.buffer + text.slice(from, at), events);
      this.buffer = '';
      from = at + 1;
    }
    this.buffer += text.slice(from);
    if (this.buffer.length + this.length > EVENT_LENGTH_MAX) throw new Error('an event of the stream is too long');
    return events;
  }

  line(line, events) {
    if (line === '') {
      if (this.data.length) events.push({ event: this.event || 'message', data: this.data.join('\n') });
      this.data = [];
      this.length = 0;
      this.event = '';
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
    if (field === 'data') {
      this.data.push(value);
      this.length += value.length;
    } else if (field === 'event') this.event = value;
  }
}

/** Reads the events of a response's body. */
export async function* readEvents(body) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
