// The list of conversations: search, open, rename, export, delete with undo.

import { matches } from './conversation.js';
import { byId, composing, download, iconButton, make } from './dom.js';
import { dayGroup } from './format.js';
import { toast } from './notices.js';

/** Draws the list; the page provides `open(id)` and `current()`. */
export class Sidebar {
  constructor({ library, open, current, busy, removed, renamed }) {
    Object.assign(this, { library, open, current, busy, removed, renamed });
    this.list = byId('list');
    this.search = byId('search');
    this.search.addEventListener('input', () => this.render());
    this.search.addEventListener('keydown', (event) => {
      if (composing(event)) return;
      if (event.key === 'Enter' || event.key === 'ArrowDown') {
        event.preventDefault();
        this.items()[0]?.focus();
      } else if (event.key === 'Escape' && this.search.value) {
        event.stopPropagation();
        this.search.value = '';
        this.render();
      }
    });
    this.list.addEventListener('keydown', (event) => this.key(event));
  }

  items() {
    return [...this.list.querySelectorAll('.open')];
  }

  /** Draws the list as it is now. */
  render() {
    if (this.renaming) return;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.closest('li')?.dataset.id : null;
    const found = this.library.list().filter((conversation) => matches(conversation, this.search.value));
    const groups = new Map();
    for (const conversation of found) {
      const name = dayGroup(conversation.updated);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(conversation);
    }
    this.list.replaceChildren(...(found.length
      ? [...groups].map(([name, members]) => make('section', {}, make('h2', {}, name), make('ul', {}, ...members.map((member) => this.item(member)))))
      : [make('p', { class: 'soft none' }, this.search.value ? 'No matches.' : 'No conversations yet.')]));
    if (focused) this.list.querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
  }

  item(conversation) {
    const isOpen = this.current() === conversation.id;
    const title = conversation.title || 'Untitled';
    return make('li', { 'data-id': conversation.id, class: isOpen ? 'current' : null },
      make('button', { type: 'button', class: 'open', 'aria-current': isOpen ? 'page' : null, onclick: () => this.open(conversation.id), ondblclick: () => this.rename(conversation.id) },
        make('span', { dir: 'auto' }, title), this.busy(conversation.id) ? make('i', { class: 'working', role: 'img', 'aria-label': 'generating an answer' }) : null),
      make('span', { class: 'row-actions' },
        iconButton('edit', `Rename ${title}`, () => this.rename(conversation.id)),
        iconButton('download', `Export ${title}`, () => this.exportOne(conversation)),
        iconButton('trash', `Delete ${title}`, () => this.remove(conversation.id))));
  }

  key(event) {
    const item = event.target.closest('li');
    if (!item || event.target.tagName === 'INPUT') return;
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      const items = this.items();
      const at = items.indexOf(item.querySelector('.open'));
      items[at + (event.key === 'ArrowDown' ? 1 : -1)]?.focus();
    } else if (event.key === 'F2') this.rename(item.dataset.id);
    else if (event.key === 'Delete' && event.target.classList.contains('open')) this.remove(item.dataset.id);
  }

  rename(id) {
    const conversation = this.library.get(id);
    const item = this.list.querySelector(`[data-id="${CSS.escape(id)}"]`);
    if (!conversation || !item) return;
    this.renaming = true;
    const field = make('input', { type: 'text', class: 'rename', 'aria-label': 'New title', maxlength: '200', dir: 'auto' });
    field.value = conversation.title;
    const end = (keep, focus) => {
      if (!this.renaming) return;
      this.renaming = false;
      const title = field.value.trim();
      if (keep && title && title !== conversation.title) {
        conversation.title = title;
        conversation.renamed = true;
        this.library.save(conversation);
        this.renamed(conversation);
      }
      this.render();
      if (focus) this.list.querySelector(`[data-id="${CSS.escape(id)}"] .open`)?.focus();
    };
    field.addEventListener('keydown', (event) => {
      if (composing(event)) return;
      if (event.key === 'Enter') end(true, true);
      else if (event.key === 'Escape') {
        event.stopPropagation();
        end(false, true);
      }
    });
    // A click elsewhere moves the focus there.
    field.addEventListener('blur', () => end(true, false));
    item.replaceChildren(field);
    field.focus();
    field.select();
  }

  async remove(id) {
    const conversation = this.library.get(id);
    if (!conversation) return;
    const items = this.items();
    const at = items.findIndex((item) => item.closest('li').dataset.id === id);
    await this.library.remove(id);
    this.removed(id);
    this.render();
    (this.items()[Math.min(at, items.length - 2)] ?? byId('new-chat')).focus();
    toast(`Deleted “${conversation.title || 'Untitled'}”.`, { action: 'Undo', onaction: async () => {
      await this.library.save(conversation);
      this.render();
      this.open(id);
    } });
  }

  exportOne(conversation) {
    const name = (conversation.title || 'conversation').toLowerCase().replace(/[^a-z0-9]+/g, '-').replace(/^-+|-+$/g, '').slice(0, 50) || 'conversation';
    download(`millstream-${name}.json`, this.library.exported(conversation.id));
  }

  exportAll() {
    const count = this.library.list().length;
    if (!count) {
      toast('There are no conversations to export.');
      return;
    }
    download(`millstream-conversations-${new Date().toISOString().slice(0, 10)}.json`, this.library.exported());
  }

  async importFile(file) {
    try {
      if (file.size > 200e6) throw new Error('the file is larger than 200 MB');
      const { added, skipped } = await this.library.import(await file.text());
      this.render();
      toast(`Imported ${added.length} of ${added.length + skipped}${skipped ? '; the others exist already' : ''}.`);
      if (added.length) this.open(added[0].id);
    } catch (error) {
      toast(`Nothing was imported: ${error.message}.`);
    }
  }
}
