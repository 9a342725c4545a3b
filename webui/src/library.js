// The conversations of this browser: in memory, written through to the store, and in step with other tabs.
//
// The one invariant: a conversation that cannot be written is kept in memory and the user is told.

import { exportText, importText, mergeImported } from './conversation.js';
import { isFull, openStore } from './store.js';

/** Opens, changes and finds conversations. `changed(id)` is called after changes from another tab. */
export class Library {
  constructor(changed, failed) {
    this.changed = changed;
    this.failed = failed;
    this.conversations = new Map();
    this.store = null;
    this.channel = typeof BroadcastChannel === 'function' ? new BroadcastChannel('millstream') : null;
    if (this.channel) this.channel.onmessage = (event) => this.fromOtherTab(event.data);
  }

  /** Reads what the browser keeps; says whether it keeps anything beyond this tab. */
  async open() {
    this.store = await openStore();
    try {
      for (const conversation of await this.store.all()) this.conversations.set(conversation.id, conversation);
    } catch (error) {
      this.failed('The conversations of this browser could not be read.', error);
    }
    return this.store.persistent;
  }

  /** Newest first. */
  list() {
    return [...this.conversations.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.conversations.get(id) ?? null;
  }

  /** Keeps a conversation as it is now. */
  async save(conversation) {
    this.conversations.set(conversation.id, conversation);
    try {
      await this.store.put(conversation);
      this.channel?.postMessage({ saved: conversation.id });
      return true;
    } catch (error) {
      this.failed(isFull(error)
        ? 'The browser’s storage is full, so this chat is not kept. Export it, or delete others.'
        : 'The browser could not keep this chat. Export it before you close the tab.', error);
      return false;
    }
  }

  async remove(id) {
    this.conversations.delete(id);
    try {
      await this.store.remove(id);
      this.channel?.postMessage({ removed: id });
    } catch (error) {
      this.failed('The browser could not delete this chat.', error);
    }
  }

  /** The text of a file with one conversation, or all. */
  exported(id = null) {
    return exportText(id ? [this.get(id)] : this.list());
  }

  /** Adds what a file holds; throws before anything is changed when the file is bad. Returns { added, skipped }. */
  async import(text) {
    const imported = importText(text);
    const added = mergeImported(this.list(), imported);
    for (const conversation of added) await this.save(conversation);
    return { added, skipped: imported.length - added.length };
  }

  async fromOtherTab({ saved, removed }) {
    if (!this.store) return;
    if (removed) this.conversations.delete(removed);
    if (saved) {
      // One at a time would need another request type; a few hundred conversations are read in milliseconds.
      const all = await this.store.all().catch(() => []);
      const fresh = all.find((conversation) => conversation.id === saved);
      if (fresh) this.conversations.set(saved, fresh);
    }
    this.changed(saved ?? removed);
  }
}
