// The chat: the messages of the open conversation, the field below them, and the answers being made.
//
// Every change of a conversation by the user goes through here. Answers go on in the background when another conversation
// is opened; their views come back with it.

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

/** Shows a conversation and takes part in it. */
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
      // The button goes; the field would open the keyboard of a touch screen.
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

  /** The answer being made in the open conversation, or null. */
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

  /** Another tab has changed a conversation: shows what is new, and stays with the answer being made here. */
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
      make('p', { class: 'hello' }, 'What shall we grind?'),
      make('p', { class: 'soft' }, 'Everything stays here: the model runs on this server, the conversations are kept in this browser.'),
      make('ul', { class: 'suggestions' }, ...SUGGESTIONS.map((text) => make('li', {}, make('button', { type: 'button', onclick: choose(text) }, text)))));
  }

  actions() {
    return {
      copy: (text, button) => this.copied(text, button),
      edit: (message, text) => this.say(message.parent, text),
      regenerate: (message) => this.answer(message.parent),
      retry: (message) => this.retry(message),
      show: (message, step) => this.show(message, step),
      restart: (message) => this.restart(message),
      results: (message, texts) => this.results(message, texts),
      contextLength: () => this.connection.contextLength,
      writtenElsewhere: (conversation) => this.library.busyElsewhere.has(conversation.id),
    };
  }

  /** Whether an answer is being made in the open conversation; if so, says what to do. */
  occupied() {
    if (this.generation()) toast('Stop the answer first.');
    return this.generation() !== null;
  }

  /** Sends what is in the field. */
  send() {
    const text = this.input.value;
    if (!text.trim() || this.occupied()) return;
    if (this.connection.state === 'locked') {
      this.askKey();
      return;
    }
    if (this.connection.state !== 'ready') {
      toast(this.connection.state === 'loading' ? 'The model is still being loaded.' : 'The server is not there yet.');
      return;
    }
    const last = this.conversation ? pathOf(this.conversation).at(-1) : null;
    if (this.say(last?.id ?? null, text)) {
      this.input.value = '';
      this.resize();
    }
  }

  /** Adds a message of the user below `parent` and asks for an answer. */
  say(parent, text) {
    if (this.occupied() || !this.fields()) return false;
    const fresh = !this.conversation;
    if (fresh) this.conversation = newConversation(this.settings.system);
    const message = addMessage(this.conversation, parent, { role: 'user', content: text });
    if (fresh) {
      this.library.conversations.set(this.conversation.id, this.conversation);
      this.opened(this.conversation);
    }
    this.answer(message.id);
    return true;
  }

  /** Asks for an answer below `parent`, beside those that are there. */
  answer(parent) {
    const fields = this.fields();
    if (!fields || this.occupied()) return;
    const { conversation } = this;
    const message = addMessage(conversation, parent, { role: 'assistant', pending: true });
    const body = { model: this.connection.model ?? 'default', messages: requestMessages(conversation, message.id), ...fields };
    const generation = new Generation(conversation, message, body, (running, change) => this.heard(running, change));
    this.generations.set(conversation.id, generation);
    this.follow = true;
    this.render();
    this.toEnd();
    // The control that asked may be gone. On a touch screen the focus would open the keyboard.
    if (document.activeElement === document.body && matchMedia('(hover: hover)').matches) this.input.focus();
    this.library.save(conversation);
    this.changed(conversation);
    announce('Sent.');
    generation.run();
  }

  /** Answers again in place of a failed attempt that brought nothing, else beside it. */
  retry(message) {
    if (this.occupied()) return;
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
    if (this.occupied()) return;
    let parent = message.id;
    message.calls.forEach((call, index) => {
      parent = addMessage(this.conversation, parent, { role: 'tool', call: call.id, content: texts[index] }).id;
    });
    this.answer(parent);
  }

  show(message, step) {
    if (!message || this.occupied()) return;
    choose(this.conversation, message);
    this.render();
    this.library.save(this.conversation);
    const buttons = this.views.get(message.id)?.element.querySelectorAll('.versions button') ?? [];
    const button = buttons[step < 0 ? 0 : 1];
    (button?.disabled ? buttons[step < 0 ? 1 : 0] : button)?.focus();
  }

  /** Another answer to the last question. */
  regenerateLast() {
    const last = this.conversation && pathOf(this.conversation).findLast((message) => message.role === 'assistant');
    if (last) this.answer(last.parent);
  }

  /** Ends the answer being made; says whether there was one. */
  stop() {
    const running = this.generation();
    running?.stop();
    return running !== null;
  }

  fields() {
    try {
      return requestFields(this.settings);
    } catch (error) {
      toast(`The settings cannot be used: ${error.message}.`, { action: 'Open settings', onaction: () => this.openSettings() });
      return null;
    }
  }

  heard(running, change) {
    const { conversation } = running;
    // A conversation that was deleted meanwhile would come back.
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

  // One drawing a frame, however fast tokens come.
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
    // A button that disappears under the focus hands it on.
    if (focused === byId('send') && running) byId('stop').focus();
    else if (focused === byId('stop') && !running) this.input.focus();
    this.holder.classList.toggle('busy', running);
    const path = this.conversation ? pathOf(this.conversation) : [];
    const stats = path.findLast((message) => message.stats?.promptTokens !== undefined)?.stats;
    const limit = this.connection.contextLength;
    const used = stats ? stats.promptTokens + (stats.tokens ?? 0) : 0;
    byId('context').textContent = used && limit ? `${formatCount(used)} of ${formatCount(limit)} tokens of context` : '';
    byId('context').classList.toggle('nearly', Boolean(limit) && used > limit * 0.85);
  }

  // Only going up says that the reader wants to stay; a text that grows does not.
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
