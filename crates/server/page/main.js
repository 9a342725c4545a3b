// The page: connects its parts, and handles the keyboard.

import { setApiKey } from './api.js';
import { Chat } from './chat.js';
import { Connection } from './connection.js';
import { askKey, closeOnOutsideClick, openSettings, openShortcuts } from './dialogs.js';
import { byId, composing, icon } from './dom.js';
import { Library } from './library.js';
import { LiveStream } from './live.js';
import { banner, toast } from './notices.js';
import { Panel } from './panel.js';
import { followSettings, loadSettings, saveSettings } from './settings.js';
import { Sidebar } from './sidebar.js';

const PANEL_FITS = matchMedia('(min-width: 1180px)');
const SIDEBAR_FITS = matchMedia('(min-width: 820px)');
const DARK = matchMedia('(prefers-color-scheme: dark)');

class Page {
  constructor() {
    this.settings = loadSettings();
    this.connection = new Connection(() => this.showConnection());
    this.library = new Library({
      changed: (id) => this.otherTab(id),
      failed: (text) => toast(text, { lasting: true, action: 'Export all', onaction: () => this.sidebar.exportAll() }),
      busy: (id) => this.chat.generations.has(id),
    });
    this.chat = new Chat({
      library: this.library,
      settings: this.settings,
      connection: this.connection,
      opened: (conversation) => this.opened(conversation),
      changed: () => this.sidebar.render(),
      openSettings: () => this.openSettings(),
      askKey: () => this.askKey(),
    });
    this.sidebar = new Sidebar({
      library: this.library,
      open: (id) => this.open(id),
      current: () => this.chat.conversation?.id ?? null,
      busy: (id) => this.chat.generations.has(id),
      removed: (id) => this.removed(id),
      renamed: (conversation) => this.opened(conversation),
    });
    this.panel = new Panel(byId('panel-body'), byId('live-state'));
    this.live = new LiveStream({
      hello: (value) => this.panel.setHello(value),
      beat: (value) => this.panel.beat(value),
      state: (state) => this.panel.setState(state),
    });
    this.panelOpen = false;
    this.sidebarOpen = false;
  }

  async start() {
    this.wire();
    this.applyTheme();
    this.showPanel(this.settings.panel ?? PANEL_FITS.matches);
    if (!PANEL_FITS.matches) this.showPanel(false);
    this.showSidebar(false);
    this.connection.check();
    const persistent = await this.library.open();
    if (!persistent) toast('This browser does not store data for this page: conversations are lost when you close the tab.', { lasting: true });
    this.fromAddress();
    document.documentElement.dataset.ready = 'true';
  }

  wire() {
    const click = (id, name, work) => {
      const button = byId(id);
      if (name) button.prepend(icon(name));
      if (button.hasAttribute('aria-label')) button.title = button.getAttribute('aria-label');
      button.addEventListener('click', work);
    };
    // Following the link would change the address, which names the conversation.
    click('skip', null, (event) => {
      event.preventDefault();
      byId('input').focus();
    });
    click('new-chat', 'plus', () => this.newChat());
    click('sidebar-open', 'menu', () => this.showSidebar(true));
    click('sidebar-close', 'close', () => this.closeDrawers());
    click('import', 'upload', () => byId('import-file').click());
    click('export', 'download', () => this.sidebar.exportAll());
    click('shortcuts-open', 'keyboard', () => openShortcuts(this.settings));
    click('theme', null, () => this.nextTheme());
    click('settings-open', 'sliders', () => this.openSettings());
    click('panel-toggle', 'pulse', () => this.togglePanel());
    click('panel-close', 'close', () => this.togglePanel());
    click('scrim', null, () => this.closeDrawers());
    click('jump', 'down', () => {});
    click('send', 'send', () => {});
    click('stop', 'stop', () => {});
    click('grid-close', 'close', () => byId('grid-dialog').close());
    const file = byId('import-file');
    file.addEventListener('change', async () => {
      if (file.files[0]) await this.sidebar.importFile(file.files[0]);
      file.value = '';
    });
    // Not the settings: their unsaved input would be lost.
    for (const id of ['shortcuts', 'grid-dialog']) closeOnOutsideClick(byId(id));
    followSettings(this.settings, () => this.applyTheme());
    DARK.addEventListener('change', () => this.restyle());
    PANEL_FITS.addEventListener('change', () => this.showPanel(PANEL_FITS.matches && (this.settings.panel ?? true)));
    SIDEBAR_FITS.addEventListener('change', () => this.showSidebar(false));
    addEventListener('hashchange', () => this.fromAddress());
    addEventListener('keydown', (event) => this.key(event));
    addEventListener('beforeunload', (event) => {
      if (this.chat.generations.size) event.preventDefault();
    });
    addEventListener('pagehide', () => {
      for (const id of this.chat.generations.keys()) this.library.notifyTabs(id, false);
    });
  }

  fromAddress() {
    const id = location.hash.startsWith('#c=') ? location.hash.slice(3) : null;
    if ((this.chat.conversation?.id ?? null) === id && document.documentElement.dataset.ready) return;
    const conversation = id ? this.library.get(id) : null;
    // The address of a deleted conversation must not stay in the history: going back would stop there.
    if (!conversation) history.replaceState(null, '', location.pathname + location.search);
    this.chat.open(conversation, SIDEBAR_FITS.matches);
  }

  open(id) {
    const conversation = this.library.get(id);
    if (!conversation) return;
    this.closeDrawers();
    this.chat.open(conversation, SIDEBAR_FITS.matches);
  }

  opened(conversation) {
    const current = this.chat.conversation;
    if (conversation && current && conversation.id !== current.id) return;
    const title = current?.title || 'New chat';
    byId('title').textContent = title;
    document.title = current ? `${title} · Millstream` : 'Millstream';
    const hash = current ? `#c=${current.id}` : '';
    if (location.hash !== hash) history.pushState(null, '', hash || location.pathname + location.search);
    this.sidebar?.render();
  }

  newChat() {
    this.closeDrawers();
    this.chat.open(null);
  }

  removed(id) {
    this.chat.generations.get(id)?.stop();
    if (this.chat.conversation?.id === id) this.chat.open(null, false);
  }

  neighbour(step, focus) {
    const list = this.library.list();
    if (!list.length) return;
    const at = list.findIndex((conversation) => conversation.id === this.chat.conversation?.id);
    const next = at < 0 ? list[step > 0 ? 0 : list.length - 1] : list[at + step];
    if (next) this.chat.open(next, focus);
  }

  openSettings() {
    openSettings(this.settings, this.chat.conversation, () => {
      if (this.chat.conversation) this.library.save(this.chat.conversation);
      toast('Settings saved.');
    });
  }

  otherTab(id) {
    if (!this.library.get(id)) this.removed(id);
    else this.chat.changedElsewhere(id);
    // Its title may have changed.
    if (this.chat.conversation?.id === id) this.opened(this.chat.conversation);
    else this.sidebar.render();
  }

  // ---- connection ----

  showConnection() {
    const { state, model, health } = this.connection;
    const mode = health?.mode === 'streaming' ? 'experts streamed from disk' : health?.mode === 'resident' ? 'all in memory' : '';
    byId('model').textContent = state === 'ready' ? [model, mode].filter(Boolean).join(' · ') : '';
    if (state === 'loading') banner('The model is loading. This page continues automatically.', { kind: 'info' });
    else if (state === 'gone') banner('The server cannot be reached. Trying again…', { action: 'Try now', onaction: () => this.connection.check() });
    else if (state === 'locked') banner('This server requires an API key.', { action: 'Enter the key', onaction: () => this.askKey() });
    else banner(null);
    if (state === 'locked') this.askKey();
    if (state === 'ready') this.chat.controls();
    this.updateLive();
  }

  askKey() {
    askKey(async (key) => {
      setApiKey(key);
      await this.connection.check();
      return this.connection.state !== 'locked';
    });
  }

  // ---- panel, drawers, theme ----

  updateLive() {
    this.live.want(this.panelOpen && this.connection.state === 'ready');
  }

  /** Whether the panel covers the rest of the page. */
  panelCovers() {
    return this.panelOpen && !PANEL_FITS.matches;
  }

  togglePanel() {
    const leaving = this.panelCovers() || byId('panel').contains(document.activeElement);
    this.showPanel(!this.panelOpen);
    if (PANEL_FITS.matches) {
      this.settings.panel = this.panelOpen;
      saveSettings(this.settings);
    } else if (this.panelOpen) {
      this.showSidebar(false);
      byId('panel-close').focus();
    }
    if (leaving) byId('panel-toggle').focus();
  }

  showPanel(open) {
    this.panelOpen = open;
    byId('app').classList.toggle('with-panel', open);
    byId('panel').inert = !open;
    byId('panel-toggle').setAttribute('aria-expanded', String(open));
    this.showScrim();
    this.updateLive();
    if (open) this.panel.restyle();
  }

  showSidebar(open) {
    this.sidebarOpen = open && !SIDEBAR_FITS.matches;
    byId('app').classList.toggle('with-sidebar', this.sidebarOpen);
    this.showScrim();
    if (this.sidebarOpen) byId('sidebar-close').focus();
  }

  showScrim() {
    const covered = this.sidebarOpen || this.panelCovers();
    byId('scrim').hidden = !covered;
    byId('main').inert = covered;
    byId('sidebar').inert = this.panelCovers() || (!this.sidebarOpen && !SIDEBAR_FITS.matches);
  }

  closeDrawers() {
    const any = this.sidebarOpen || this.panelCovers();
    if (this.sidebarOpen) {
      this.showSidebar(false);
      byId('sidebar-open').focus();
    }
    if (this.panelCovers()) {
      this.showPanel(false);
      byId('panel-toggle').focus();
    }
    return any;
  }

  nextTheme() {
    const order = ['auto', 'light', 'dark'];
    this.settings.theme = order[(order.indexOf(this.settings.theme) + 1) % order.length];
    saveSettings(this.settings);
    this.applyTheme();
  }

  applyTheme() {
    const { theme } = this.settings;
    if (theme === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = byId('theme');
    button.replaceChildren(icon({ auto: 'half', light: 'sun', dark: 'moon' }[theme]));
    const label = { auto: 'Theme: system', light: 'Theme: light', dark: 'Theme: dark' }[theme];
    button.setAttribute('aria-label', label);
    button.title = label;
    this.restyle();
  }

  restyle() {
    this.panel.restyle();
  }

  // ---- keyboard ----

  key(event) {
    if (event.defaultPrevented || composing(event)) return;
    if (document.querySelector('dialog[open]')) return;
    const run = (work) => {
      event.preventDefault();
      work();
    };
    if (event.key === 'Escape') {
      if (this.closeDrawers() || this.chat.stop()) event.preventDefault();
      return;
    }
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.code === 'KeyK') {
      run(() => {
        this.closeDrawers();
        this.showSidebar(true);
        byId('search').focus();
      });
      return;
    }
    const field = event.target.closest?.('input, textarea, select');
    if (event.altKey && !event.ctrlKey && !event.metaKey) {
      // On a Mac, Alt types special letters and accents.
      if (field && event.code.startsWith('Key') && event.key.toUpperCase() !== event.code.slice(3)) return;
      const work = {
        KeyN: () => this.newChat(), KeyP: () => this.togglePanel(), KeyS: () => this.openSettings(), KeyR: () => this.chat.regenerateLast(),
        ArrowUp: () => this.neighbour(-1, true), ArrowDown: () => this.neighbour(1, true),
      }[event.code];
      if (work) run(work);
      return;
    }
    if (event.ctrlKey || event.metaKey || field) return;
    if (event.key === '?') {
      run(() => openShortcuts(this.settings));
      return;
    }
    if (!this.settings.singleKeys) return;
    const work = {
      '/': () => byId('input').focus(), n: () => this.newChat(), j: () => this.neighbour(1, false), k: () => this.neighbour(-1, false),
      p: () => this.togglePanel(), s: () => this.openSettings(), t: () => this.nextTheme(), r: () => this.chat.regenerateLast(),
    }[event.key];
    if (work) run(work);
  }
}

new Page().start();
