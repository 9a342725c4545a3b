// Server-sent events: corner cases of the format, and independence of how the stream is cut.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { EventParser, readEvents } from '../sse.js';

function events(...pieces) {
  const parser = new EventParser();
  return pieces.flatMap((piece) => parser.push(piece));
}

function check(text, expect) {
  assert.deepEqual(events(text).map(({ event, data }) => [event, data]), expect, JSON.stringify(text));
}

const STREAM = '\ufeff: keep-alive\r\n\r\nevent: beat\rdata: {"a":1}\r\rdata: one\ndata:two\ndata\n\nid: 7\nretry: 10\n\r\nevent: lost\n\ndata: größe 😀\r\n\r\ndata: [DONE]\n\ndata: unfinished';
const EXPECT = [['beat', '{"a":1}'], ['message', 'one\ntwo\n'], ['message', 'größe 😀'], ['message', '[DONE]']];

test('lines, fields and ends', () => {
  check('data: a\n\n', [['message', 'a']]);
  check('data:a\ndata: b\n\n', [['message', 'a\nb']]);
  check('data:  a\n\n', [['message', ' a']]);
  check(': only a comment\n\n', []);
  check('event: x\n\ndata: y\n\n', [['message', 'y']]);
  check('event: x\ndata: y\n\n', [['x', 'y']]);
  check('data: a', []);
  check('data\n\n', [['message', '']]);
  check(STREAM, EXPECT);
});

test('however a stream is cut, the events are the same', () => {
  for (let first = 0; first <= STREAM.length; first += 1) {
    for (let second = first; second <= STREAM.length; second += 3) {
      const found = events(STREAM.slice(0, first), STREAM.slice(first, second), STREAM.slice(second));
      assert.deepEqual(found.map(({ event, data }) => [event, data]), EXPECT, `cut at ${first} and ${second}`);
    }
  }
  assert.deepEqual(events(...STREAM).map(({ event, data }) => [event, data]), EXPECT);
});

test('bytes may be cut inside a character', async () => {
  const bytes = new TextEncoder().encode(STREAM.slice(1));
  for (let size = 1; size < 9; size += 1) {
    const body = new ReadableStream({
      start(controller) {
        for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
        controller.close();
      },
    });
    const found = [];
    for await (const { event, data } of readEvents(body)) found.push([event, data]);
    assert.deepEqual(found, EXPECT, `pieces of ${size}`);
  }
});

test('an event without end is refused', () => {
  const parser = new EventParser();
  const piece = 'x'.repeat(1 << 20);
  assert.throws(() => {
    for (let count = 0; count < 20; count += 1) parser.push(piece);
  }, /too long/);
});
