// Conversations: branches, request messages, import and export. Also the grid's arithmetic and the settings.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { addMessage, adopt, adoptMessages, choose, chooseTo, dropMessage, exportText, importText, matches, mergeImported, newConversation, pathOf, requestMessages, titleOf, versionsOf } from '../conversation.js';
import { chooseLayout, decodeBits } from '../grid.js';
import { explainContext } from '../message.js';
import { parseNumber, requestFields } from '../settings.js';

function sample() {
  const conversation = newConversation('be brief');
  const question = addMessage(conversation, null, { role: 'user', content: 'first question' });
  addMessage(conversation, question.id, { role: 'assistant', content: 'one' });
  const second = addMessage(conversation, question.id, { role: 'assistant', content: 'two', reasoning: 'hm' });
  addMessage(conversation, second.id, { role: 'user', content: 'next' });
  return conversation;
}

const words = (conversation) => pathOf(conversation).map((message) => message.content);

test('a new version is chosen, and the old one stays', () => {
  const conversation = sample();
  assert.deepEqual(words(conversation), ['first question', 'two', 'next']);
  const { all, index } = versionsOf(conversation, pathOf(conversation)[1]);
  assert.deepEqual([all.length, index], [2, 1]);
  choose(conversation, all[0]);
  assert.deepEqual(words(conversation), ['first question', 'one']);
  choose(conversation, all[1]);
  assert.deepEqual(words(conversation), ['first question', 'two', 'next']);
  addMessage(conversation, null, { role: 'user', content: 'edited' });
  assert.deepEqual(words(conversation), ['edited']);
  assert.equal(conversation.title, 'first question');
});

test('a request holds the chosen path, up to the new answer', () => {
  const conversation = sample();
  const last = pathOf(conversation).at(-1);
  assert.deepEqual(requestMessages(conversation, last.id), [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: 'first question' },
    { role: 'assistant', content: 'two', reasoning_content: 'hm' },
  ]);
  const call = addMessage(conversation, last.id, { role: 'assistant', calls: [{ id: 'c', name: 'f', arguments: '{}' }] });
  addMessage(conversation, call.id, { role: 'tool', call: 'c', content: '42' });
  assert.deepEqual(requestMessages(conversation).slice(-2), [
    { role: 'assistant', content: '', tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] },
    { role: 'tool', tool_call_id: 'c', content: '42' },
  ]);
});

test('two copies of a conversation are merged', () => {
  const here = sample();
  const last = pathOf(here).at(-1);
  const answer = addMessage(here, last.id, { role: 'assistant', content: 'half', pending: true });
  const there = structuredClone(here);
  // Here the answer continues; in the other tab another message is sent and the conversation renamed.
  answer.content = 'half an answer';
  addMessage(there, last.id, { role: 'user', content: 'from there' });
  there.title = 'renamed';
  adoptMessages(here, there);
  assert.deepEqual(words(here), ['first question', 'two', 'next', 'half an answer']);
  assert.equal(here.messages.length, there.messages.length);
  adopt(here, there);
  assert.deepEqual([here.title, words(here).at(-1)], ['renamed', 'from there']);
  chooseTo(here, answer);
  assert.equal(words(here).at(-1), 'half an answer');
  // The answer ends here, and that is the end there as well.
  delete answer.pending;
  adopt(there, structuredClone(here));
  assert.deepEqual(there.messages, here.messages);
  adopt(here, { ...structuredClone(here), messages: [] });
  assert.deepEqual(there.messages, here.messages);
  dropMessage(here, answer);
  adoptMessages(here, there);
  assert.ok(!here.messages.includes(answer));
  adoptMessages(there, here);
  assert.deepEqual(there.messages, here.messages);
});

test('what was exported is imported as it was', () => {
  const conversation = sample();
  conversation.messages[1].pending = true;
  const [back] = importText(exportText([conversation]));
  assert.deepEqual(back, conversation);
  assert.deepEqual(mergeImported([conversation], [back]), []);
  const turned = { ...conversation, messages: conversation.messages.map((message) => Object.fromEntries(Object.entries(message).reverse())) };
  assert.deepEqual(mergeImported([turned], [back]), []);
  back.messages[1].content = 'changed';
  const [copy] = mergeImported([conversation], [back]);
  assert.notEqual(copy.id, conversation.id);
  assert.deepEqual(mergeImported([], [back, back]).length, 1);
  const [renamed] = importText(exportText([{ ...conversation, id: 'a"><b' }]));
  assert.match(renamed.id, /^[\w-]+$/);
});

test('an invalid file is refused with a reason', () => {
  const good = JSON.parse(exportText([sample()]));
  const check = (change, expect) => {
    const file = structuredClone(good);
    change(file);
    assert.throws(() => importText(JSON.stringify(file)), expect);
  };
  assert.throws(() => importText('{'), /not JSON/);
  assert.throws(() => importText('[]'), /not exported by Millstream/);
  check((file) => delete file.format, /not exported by Millstream/);
  check((file) => (file.version = 9), /version 9/);
  check((file) => (file.conversations = {}), /no list of conversations/);
  check((file) => (file.conversations[0] = null), /conversation 1 is not an object/);
  check((file) => (file.conversations[0].messages = 'x'), /no list of messages/);
  check((file) => (file.conversations[0].messages[0].role = 'root'), /unknown role "root"/);
  check((file) => (file.conversations[0].messages[0].content = 5), /the content of message 1 of conversation 1 is not a string/);
  check((file) => (file.conversations[0].messages[2].parent = 'missing'), /has a parent that is missing/);
  check((file) => (file.conversations[0].messages[1].id = file.conversations[0].messages[0].id), /has the id of another message/);
  check((file) => (file.conversations[0].messages[0].id = '"]<'), /no usable id/);
  check((file) => (file.conversations[0].messages[0].calls = [1]), /tool call/);
  check((file) => file.conversations[0].messages.reverse(), /is missing/);
});

test('search and titles', () => {
  const conversation = sample();
  assert.ok(matches(conversation, 'QUESTION two'));
  assert.ok(matches(conversation, '  '));
  assert.ok(!matches(conversation, 'question three'));
  assert.equal(titleOf('# Hello *there*\nmore'), 'Hello there');
  assert.equal(titleOf('  \n '), 'Untitled');
  assert.ok(titleOf('word '.repeat(50)).length <= 61);
  assert.equal(titleOf(`a${'🦊'.repeat(70)}`), `a${'🦊'.repeat(59)}…`);
});

test('bits come least significant first', () => {
  assert.deepEqual([...decodeBits(Buffer.from([0b101, 0b10]).toString('base64'), 12)], [1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
  assert.deepEqual([...decodeBits('', 3)], [0, 0, 0]);
});

test('every expert has a place in the grid', () => {
  for (const [layers, experts] of [[1, 1], [6, 32], [12, 64], [40, 256], [94, 512], [61, 384], [3, 7]]) {
    for (const width of [200, 350, 700, 2400]) {
      const { across, down, gap, rows, columns, band } = chooseLayout(layers, experts, width, 400);
      const where = `${layers} × ${experts} in ${width}`;
      assert.ok(across - gap >= 1 && down - gap >= 1 && rows * columns >= experts, where);
      assert.ok(columns * across <= width + 1e-9 && band >= rows * down, where);
    }
  }
});

test('settings become request fields', () => {
  const settings = { system: '', thinking: 'auto', schema: '', tools: '', temperature: null, topP: null, topK: null, minP: null, repetition: null, maxTokens: null, seed: null };
  assert.deepEqual(requestFields(settings), {});
  assert.deepEqual(requestFields({ ...settings, temperature: 0, topK: 20, thinking: 'off', schema: '{"type":"object"}' }), {
    temperature: 0, top_k: 20, enable_thinking: false,
    response_format: { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema: { type: 'object' } } },
  });
  assert.throws(() => requestFields({ ...settings, schema: '[1]' }), /must be an object/);
  assert.throws(() => requestFields({ ...settings, tools: '{' }), /not JSON/);
  assert.equal(parseNumber('temperature', ' '), null);
  assert.equal(parseNumber('temperature', '0.7'), 0.7);
  assert.throws(() => parseNumber('temperature', '3'), /between 0 and 2/);
  assert.throws(() => parseNumber('topK', '1.5'), /whole/);
  assert.throws(() => parseNumber('seed', 'x'), /between/);
});

test('a full context is reported with both numbers', () => {
  assert.match(explainContext('the prompt has 41237 tokens, the context holds 32768', 32768), /41,237 tokens, but the context holds 32,768/);
  assert.match(explainContext('maximum context length is 2048 tokens, you asked for 3000', null), /3,000 tokens, but the context holds 2,048/);
  assert.equal(explainContext('too long', null), 'too long');
});
