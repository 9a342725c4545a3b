// The conversations of this browser: in memory, written through to the store, and synchronized with other tabs.
//
// The one invariant: a conversation that cannot be stored stays in memory, and the user is notified. A conversation stays
// the same object however often other tabs change it, so an answer being generated continues in it.

import { adopt, adoptMessages, exportText, importText, mergeImported } from './conversation.js';
import { isFull, openStore } from './store.js';

/** Opens, changes and finds conversations. `changed(id)` is called after changes from another tab; `busy(id)` says whether this tab is generating an answer. */
export class Library {
  constructor({ changed, failed, busy }) {
    Object.assign(this, { changed, failed, busy });
    this.conversations = new Map();
    /** Ids that the store has had: where one is missing, another tab has deleted the conversation. */
    this.stored = new Set();
    /** Conversations in which another tab is generating an answer. */
    this.busyElsewhere = new Set();
    this.store = null;
    this.channel = typeof BroadcastChannel === 'function' ? new BroadcastChannel('millstream') : null;
    if (this.channel) this.channel.onmessage = (event) => this.fromOtherTab(event.data);
  }

  /** Reads the stored conversations; returns whether they outlast this tab. */
  async open() {
    this.store = await openStore();
    try {
      for (const conversation of await this.store.all()) this.adopt(conversation);
    } catch (error) {
      this.failed('The conversations stored in this browser could not be read.', error);
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

  /** Takes in a conversation that the store has. */
  adopt(conversation) {
    this.conversations.set(conversation.id, conversation);
    this.stored.add(conversation.id);
  }

  /** Stores a conversation as it is now, merged with additions by other tabs, unless one of them has deleted it meanwhile. */
  async save(conversation) {
    this.conversations.set(conversation.id, conversation);
    try {
      await this.store.update(conversation.id, (kept) => {
        if (kept) adoptMessages(conversation, kept);
        return kept || !this.stored.has(conversation.id) ? conversation : null;
      });
      this.stored.add(conversation.id);
      this.notifyTabs(conversation.id, this.busy(conversation.id));
      return true;
    } catch (error) {
      this.failed(isFull(error)
        ? 'The browser’s storage is full, so this chat is not saved. Export it, or delete other chats.'
        : 'The browser could not save this chat. Export it before you close the tab.', error);
      return false;
    }
  }

  /** Notifies the other tabs that a conversation was saved, and whether this tab is still generating. */
  notifyTabs(saved, busy) {
    this.channel?.postMessage({ saved, busy });
  }

  async remove(id) {
    this.conversations.delete(id);
    try {
      await this.store.remove(id);
      this.stored.delete(id);
      this.channel?.postMessage({ removed: id });
    } catch (error) {
      this.failed('The browser could not delete this chat.', error);
    }
  }

  /** The text of an export file with one conversation, or all. */
  exported(id = null) {
    return exportText(id ? [this.get(id)] : this.list());
  }

  /** Adds the conversations of a file; a file that is not valid throws before any change. Returns { added, skipped }. */
  async import(text) {
    const imported = importText(text);
    const added = mergeImported(this.list(), imported);
    for (const conversation of added) {
      this.stored.delete(conversation.id);
      await this.save(conversation);
    }
    return { added, skipped: imported.length - added.length };
  }

  async fromOtherTab({ saved, removed, busy }) {
    if (!this.store) return;
    if (busy) this.busyElsewhere.add(saved);
    else this.busyElsewhere.delete(saved ?? removed);
    if (removed) this.conversations.delete(removed);
    const fresh = saved && (await this.store.get(saved).catch(() => null));
    if (fresh) {
      const known = this.get(saved);
      if (known) adopt(known, fresh);
      else this.adopt(fresh);
    }
    this.changed(saved ?? removed);
  }
}
