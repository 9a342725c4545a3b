// The library of conversations over a store that other tabs change.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newConversation } from '../conversation.js';
import { Library } from '../library.js';

async function opened() {
  const library = new Library({ changed() {}, failed: (message, error) => assert.fail(`${message} ${error}`), busy: () => false });
  library.channel?.close();
  library.channel = null;
  await library.open();
  return library;
}

const stored = async (library) => (await library.store.all()).map(({ id }) => id);

test('a save does not bring back what another tab has deleted', async () => {
  const library = await opened();
  const conversation = newConversation();
  await library.save(conversation);
  assert.deepEqual(await stored(library), [conversation.id]);
  await library.store.remove(conversation.id);
  await library.save(conversation);
  assert.deepEqual(await stored(library), []);
});

test('what this tab has deleted can be restored', async () => {
  const library = await opened();
  const conversation = newConversation();
  await library.save(conversation);
  await library.remove(conversation.id);
  await library.save(conversation);
  assert.deepEqual(await stored(library), [conversation.id]);
});
