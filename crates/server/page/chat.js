// The chat: the messages of the open conversation, the message field, and the answers being generated.
//
// Every change of a conversation by the user goes through here. Answers continue in the background when another
// conversation is opened; their views return with it.

import { addMessage, childrenOf, choose, chooseTo, dropMessage, newConversation, pathOf, requestMessages } from './conversation.js';
import { byId, composing, copyText, icon, make } from './dom.js';
import { formatCount } from './format.js';
import { Generation } from './generation.js';
import { MessageView } from './message.js';
import { announce, toast } from './notices.js';
import { requestFields } from './settings.js';

const NEAR_END_PX = 90;
const SAVE_EVERY_MS = 2_000;
const SUGGESTIONS = ['Tell me a story about a fox and a lantern', 'What is 48 + 27?', 'Explain in three sentences what a mixture of experts is', 'Write a Python function that reverses a list, with a test'];

/** Shows a conversation, sends messages and receives answers. */
export class Chat {
  constructor({ library, settings, connection, opened, changed, openSettings, askKey }) {
    Object.assign(this, { library, settings, connection, opened, changed, openSettings, askKey });
    this.conversation = null;
    this.views = new Map();
    this.generations = new Map();
    this.savedAt = new Map();
    this.frame = 0;
    this.follow = true;
    this.lastTop = 0;
    this.scroll = byId('scroll');
    this.holder = byId('messages');
    this.input = byId('input');
    this.wire();
  }

  wire() {
    byId('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    this.input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && !event.shiftKey && !composing(event)) {
        event.preventDefault();
        this.send();
      } else if (event.key === 'ArrowUp' && this.input.value === '') {
        const mine = this.conversation && pathOf(this.conversation).findLast((message) => message.role === 'user');
        if (mine && !this.generation()) {
          event.preventDefault();
          this.views.get(mine.id)?.startEdit();
        }
      }
    });
    this.input.addEventListener('input', () => this.resize());
    byId('stop').addEventListener('click', () => this.stop());
    byId('jump').addEventListener('click', () => {
      // The button is hidden now; focusing the field would open the keyboard of a touch screen.
      this.scroll.focus();
      this.toEnd();
    });
    this.scroll.addEventListener('scroll', () => this.scrolled(), { passive: true });
    this.holder.addEventListener('click', (event) => {
      const button = event.target.closest('[data-action="copy-code"]');
      if (button) this.copyCode(button);
    });
    // Countdown of a busy server, seconds of thinking.
    setInterval(() => {
      if (!document.hidden && ['busy', 'thinking'].includes(this.generation()?.phase)) this.redraw();
    }, 1_000);
  }

  /** The answer being generated in the open conversation, or null. */
  generation() {
    return (this.conversation && this.generations.get(this.conversation.id)) ?? null;
  }

  /** Opens a conversation, or an empty page with null. */
  open(conversation, focus = true) {
    this.conversation = conversation;
    this.follow = true;
    this.render();
    this.toEnd();
    this.opened(conversation);
    if (focus) this.input.focus();
  }

  /** Draws everything again. */
  render() {
    this.views.clear();
    const path = this.conversation ? pathOf(this.conversation) : [];
    const running = this.generation();
    const elements = path.map((message, index) => {
      const view = new MessageView(this.conversation, message, this.actions(), { last: index === path.length - 1, generation: running?.message === message ? running : null });
      this.views.set(message.id, view);
      return view.element;
    });
    this.holder.replaceChildren(...(elements.length ? elements : [this.welcome()]));
    this.controls();
  }

  /** Another tab has changed a conversation: shows the changes, and keeps the answer being generated here in view. */
  changedElsewhere(id) {
    const running = this.generations.get(id);
    if (running) chooseTo(running.conversation, running.message);
    if (this.conversation?.id !== id) return;
    const path = pathOf(this.conversation);
    if (path.length === this.views.size && path.every((message) => this.views.has(message.id))) {
      for (const view of this.views.values()) view.catchUp();
    } else if (!this.holder.querySelector('.edit')) this.render();
    if (this.follow) this.toEnd();
  }

  welcome() {
    const choose = (text) => () => {
      this.input.value = text;
      this.resize();
      this.send();
    };
    return make('div', { class: 'welcome' },
      make('img', { src: 'icon.svg', alt: '', width: '72', height: '72' }),
      make('p', { class: 'hello' }, 'Ask the model something'),
      make('p', { class: 'soft' }, 'The model runs on this server. Conversations are stored in this browser only.'),
      make('ul', { class: 'suggestions' }, ...SUGGESTIONS.map((text) => make('li', {}, make('button', { type: 'button', onclick: choose(text) }, text)))));
  }

  actions() {
    return {
      copy: (text, button) => this.copied(text, button),
      edit: (message, text) => this.addQuestion(message.parent, text),
      regenerate: (message) => this.answer(message.parent),
      retry: (message) => this.retry(message),
      show: (message, step) => this.show(message, step),
      restart: (message) => this.restart(message),
      results: (message, texts) => this.results(message, texts),
      contextLength: () => this.connection.contextLength,
      generatedElsewhere: (conversation) => this.library.busyElsewhere.has(conversation.id),
    };
  }

  /** Whether an answer is being generated in the open conversation; if so, asks the user to stop it. */
  isBusy() {
    if (this.generation()) toast('Stop the answer first.');
    return this.generation() !== null;
  }

  /** Sends the text of the message field. */
  send() {
    const text = this.input.value;
    if (!text.trim() || this.isBusy()) return;
    if (this.connection.state === 'locked') {
      this.askKey();
      return;
    }
    if (this.connection.state !== 'ready') {
      toast(this.connection.state === 'loading' ? 'The model is still loading.' : 'The server cannot be reached yet.');
      return;
    }
    const last = this.conversation ? pathOf(this.conversation).at(-1) : null;
    if (this.addQuestion(last?.id ?? null, text)) {
      this.input.value = '';
      this.resize();
    }
  }

  /** Adds a user message below `parent` and requests an answer. */
  addQuestion(parent, text) {
    if (this.isBusy() || !this.fields()) return false;
    const isNew = !this.conversation;
    if (isNew) this.conversation = newConversation(this.settings.system);
    const message = addMessage(this.conversation, parent, { role: 'user', content: text });
    if (isNew) {
      this.library.conversations.set(this.conversation.id, this.conversation);
      this.opened(this.conversation);
    }
    this.answer(message.id);
    return true;
  }

  /** Requests an answer below `parent`, as a new version next to earlier ones. */
  answer(parent) {
    const fields = this.fields();
    if (!fields || this.isBusy()) return;
    const { conversation } = this;
    const message = addMessage(conversation, parent, { role: 'assistant', pending: true });
    const body = { model: this.connection.model ?? 'default', messages: requestMessages(conversation, message.id), ...fields };
    const generation = new Generation(conversation, message, body, (running, change) => this.generationChanged(running, change));
    this.generations.set(conversation.id, generation);
    this.follow = true;
    this.render();
    this.toEnd();
    // The control that had the focus may be gone. On a touch screen, focusing the field would open the keyboard.
    if (document.activeElement === document.body && matchMedia('(hover: hover)').matches) this.input.focus();
    this.library.save(conversation);
    this.changed(conversation);
    announce('Sent.');
    generation.run();
  }

  /** Requests an answer again: in place of a failed attempt without content, otherwise as a new version. */
  retry(message) {
    if (this.isBusy()) return;
    const bare = !message.content && !message.calls?.length && childrenOf(this.conversation, message.id).length === 0;
    if (bare) dropMessage(this.conversation, message);
    this.answer(message.parent);
  }

  restart(message) {
    const asked = this.conversation.messages.find((other) => other.id === message.parent);
    this.open(null);
    this.input.value = asked?.content ?? '';
    this.resize();
  }

  results(message, texts) {
    if (this.isBusy()) return;
    let parent = message.id;
    message.calls.forEach((call, index) => {
      parent = addMessage(this.conversation, parent, { role: 'tool', call: call.id, content: texts[index] }).id;
    });
    this.answer(parent);
  }

  show(message, step) {
    if (!message || this.isBusy()) return;
    choose(this.conversation, message);
    this.render();
    this.library.save(this.conversation);
    const buttons = this.views.get(message.id)?.element.querySelectorAll('.versions button') ?? [];
    const button = buttons[step < 0 ? 0 : 1];
    (button?.disabled ? buttons[step < 0 ? 1 : 0] : button)?.focus();
  }

  /** Requests another answer to the last user message. */
  regenerateLast() {
    const last = this.conversation && pathOf(this.conversation).findLast((message) => message.role === 'assistant');
    if (last) this.answer(last.parent);
  }

  /** Stops the answer being generated; returns whether there was one. */
  stop() {
    const running = this.generation();
    running?.stop();
    return running !== null;
  }

  fields() {
    try {
      return requestFields(this.settings);
    } catch (error) {
      toast(`The settings are not valid: a value ${error.message}.`, { action: 'Open settings', onaction: () => this.openSettings() });
      return null;
    }
  }

  generationChanged(running, change) {
    const { conversation } = running;
    // Saving would restore a conversation that was deleted meanwhile.
    const save = () => this.library.get(conversation.id) === conversation && this.library.save(conversation);
    if (change === 'done') {
      this.generations.delete(conversation.id);
      conversation.updated = Date.now();
      save();
      this.changed(conversation);
      this.ended(running);
      return;
    }
    const now = Date.now();
    if (now - (this.savedAt.get(conversation.id) ?? now) > SAVE_EVERY_MS) {
      this.savedAt.set(conversation.id, now);
      save();
    } else if (!this.savedAt.has(conversation.id)) this.savedAt.set(conversation.id, now);
    if (conversation === this.conversation) this.redraw();
  }

  ended(running) {
    if (running.failure?.status === 401) {
      this.connection.lock();
      this.askKey();
    } else if (running.failure?.status === 0) this.connection.check();
    if (running.conversation !== this.conversation) return;
    const view = this.views.get(running.message.id);
    if (!view) return;
    view.generation = null;
    view.draw();
    view.finish();
    this.controls();
    const { message } = running;
    announce(`${view.body.fresh(true)} ${message.error ? `The answer failed: ${message.error.message}` : message.stopped ? 'Stopped.' : 'End of the answer.'}`);
    if (this.follow) this.toEnd();
  }

  // At most one redraw per frame, however fast tokens arrive.
  redraw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const running = this.generation();
      const view = running && this.views.get(running.message.id);
      if (!view) return;
      view.draw();
      announce(view.body.fresh(false));
      if (this.follow) this.toEnd();
    });
  }

  controls() {
    const running = this.generation() !== null;
    const focused = document.activeElement;
    byId('send').hidden = running;
    byId('stop').hidden = !running;
    // When the focused button is hidden, the focus moves to its replacement.
    if (focused === byId('send') && running) byId('stop').focus();
    else if (focused === byId('stop') && !running) this.input.focus();
    this.holder.classList.toggle('busy', running);
    const path = this.conversation ? pathOf(this.conversation) : [];
    const stats = path.findLast((message) => message.stats?.promptTokens !== undefined)?.stats;
    const limit = this.connection.contextLength;
    const used = stats ? stats.promptTokens + (stats.tokens ?? 0) : 0;
    byId('context').textContent = used && limit ? `${formatCount(used)} of ${formatCount(limit)} context tokens` : '';
    byId('context').classList.toggle('nearly', Boolean(limit) && used > limit * 0.85);
  }

  // Only scrolling up stops following the end; growth of the text does not.
  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroll;
    const left = scrollHeight - scrollTop - clientHeight;
    if (scrollTop < this.lastTop - 1) this.follow = left < 8;
    else if (left < NEAR_END_PX) this.follow = true;
    this.lastTop = scrollTop;
    byId('jump').hidden = this.follow;
  }

  toEnd() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.follow = true;
    byId('jump').hidden = true;
  }

  resize() {
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(this.input.scrollHeight, innerHeight * 0.4)}px`;
  }

  async copied(text, button) {
    const done = await copyText(text);
    if (!done) {
      toast('The browser did not allow copying.');
      return;
    }
    button.replaceChildren(icon('check'));
    announce('Copied.');
    setTimeout(() => button.replaceChildren(icon('copy')), 1_500);
  }

  async copyCode(button) {
    const code = button.closest('figure').querySelector('code').textContent;
    const done = await copyText(code);
    // The button's text node belongs to the renderer, so it is changed in place.
    button.firstChild.data = done ? 'Copied' : 'Not allowed';
    announce(done ? 'Copied.' : 'The browser did not allow copying.');
    setTimeout(() => {
      if (button.firstChild) button.firstChild.data = 'Copy';
    }, 1_500);
  }
}
