// One message on the page: an article with its text, thinking, tool calls and controls.
//
// Draws, and calls back; does not change conversations. A streaming answer is drawn once a frame, and only where it changed.

import { versionsOf } from './conversation.js';
import { composing, icon, iconButton, make, patchNodes } from './dom.js';
import { formatCount, formatRate, formatSeconds, plural } from './format.js';
import { plainText } from './inline.js';
import { MarkdownStream } from './markdown.js';

/** A growing Markdown text and its elements. */
export class MarkdownBody {
  constructor(className) {
    this.element = make('div', { class: className });
    this.stream = new MarkdownStream();
    this.length = 0;
    this.shown = [];
    this.settledShown = 0;
    this.spoken = 0;
  }

  /** Draws the text so far, which must begin with the text drawn before. */
  draw(text, open) {
    this.stream.push(text.slice(this.length));
    this.length = text.length;
    const next = this.stream.blocks(open);
    patchNodes(this.element, this.shown, next, this.settledShown);
    this.shown = next;
    this.settledShown = this.stream.settled.length;
  }

  /** The plain text of blocks settled since the last call. */
  fresh(all) {
    const until = all ? this.shown.length : this.settledShown;
    const words = this.shown.slice(this.spoken, until).map((block) => (block.tag === 'figure' ? 'Code.' : block.tag === 'div' ? 'Table.' : plainText([block])));
    this.spoken = Math.max(this.spoken, until);
    return words.join('\n');
  }
}

/** A message and its controls. `actions`: copy, edit, regenerate, show, retry, restart, results, contextLength, generatedElsewhere. */
export class MessageView {
  constructor(conversation, message, actions, { last = false, generation = null } = {}) {
    this.conversation = conversation;
    this.message = message;
    this.actions = actions;
    this.last = last;
    this.generation = generation;
    this.element = make('article', { class: `message ${message.role}`, 'data-id': message.id });
    if (message.role === 'assistant') this.buildAnswer();
    else if (message.role === 'tool') this.buildResult();
    else this.buildQuestion();
  }

  buildQuestion() {
    this.element.setAttribute('aria-label', 'You');
    this.element.replaceChildren(
      make('div', { class: 'bubble', dir: 'auto' }, this.message.content),
      make('footer', {}, this.versions(), this.bar(
        iconButton('edit', 'Edit and send again', () => this.startEdit()),
        this.copyButton(),
      )),
    );
  }

  buildResult() {
    this.element.setAttribute('aria-label', 'Tool result');
    this.element.replaceChildren(make('div', { class: 'call result' }, make('p', { class: 'call-head' }, icon('check'), ' Result'), make('pre', { tabindex: '0' }, this.message.content)));
  }

  buildAnswer() {
    this.element.setAttribute('aria-label', 'Answer');
    this.thinkingSummary = make('span', {}, 'Thinking');
    this.thinking = new MarkdownBody('markdown thoughts');
    this.thinkingBox = make('details', { class: 'thinking', hidden: true }, make('summary', {}, this.thinkingSummary), this.thinking.element);
    // Collapsed thinking is drawn when it is opened.
    this.thinkingBox.addEventListener('toggle', () => this.draw());
    this.body = new MarkdownBody('markdown');
    this.calls = make('div', { class: 'calls' });
    this.state = make('div', { class: 'state', hidden: true });
    this.problem = make('div', { class: 'problem', hidden: true });
    this.footer = make('footer', {});
    this.element.replaceChildren(this.thinkingBox, this.body.element, this.calls, this.state, this.problem, this.footer);
    this.draw();
    this.finish();
  }

  /** Draws the message as it is now. */
  draw() {
    const { message } = this;
    const open = this.generation !== null;
    this.element.classList.toggle('streaming', open);
    this.element.setAttribute('aria-busy', String(open));
    if (message.reasoning) {
      this.thinkingBox.hidden = false;
      const live = open && this.generation.phase === 'thinking';
      this.thinkingBox.classList.toggle('live', live);
      const seconds = message.thoughtSeconds;
      const elapsed = live ? Math.floor((performance.now() - this.generation.thinkingSince) / 1000) : 0;
      this.thinkingSummary.textContent = live ? `Thinking…${elapsed ? ` ${elapsed} s` : ''}` : seconds ? `Thought for ${formatSeconds(seconds)}` : 'Thinking';
      if (this.thinkingBox.open) this.thinking.draw(message.reasoning, live);
    }
    this.body.draw(message.content, open);
    this.drawCalls();
    this.drawState();
  }

  drawState() {
    const { generation } = this;
    const phase = generation?.phase;
    const elsewhere = this.isGeneratedElsewhere();
    const shown = elsewhere || phase === 'waiting' || phase === 'prefill' || phase === 'busy';
    this.state.hidden = !shown;
    if (!shown) return;
    if (elsewhere) this.state.replaceChildren('This answer is being generated in another tab.');
    else if (phase === 'prefill' && generation.progress?.total > 0) {
      const { done, total, cached } = generation.progress;
      const words = `Processing the prompt: ${formatCount(done)} of ${plural(total, 'token')}${cached ? `, ${formatCount(cached)} cached` : ''}`;
      let bar = this.state.querySelector('progress');
      if (!bar) {
        bar = make('progress', { 'aria-label': 'Prompt progress' });
        this.state.replaceChildren(make('span', {}), bar);
      }
      this.state.firstElementChild.textContent = words;
      bar.max = total;
      bar.value = Math.min(done, total);
    } else if (phase === 'busy') {
      const seconds = Math.max(0, Math.ceil((generation.retryAt - Date.now()) / 1000));
      this.state.replaceChildren(make('span', {}, `The server is busy. Retrying in ${plural(seconds, 'second')}. `));
    } else if (!this.state.querySelector('.dots')) {
      this.state.replaceChildren(make('span', { class: 'dots', role: 'img', 'aria-label': 'Waiting for the answer' }, make('i'), make('i'), make('i')));
    }
  }

  isGeneratedElsewhere() {
    return !this.generation && this.message.pending === true && this.actions.generatedElsewhere(this.conversation);
  }

  drawCalls() {
    const calls = this.message.calls ?? [];
    calls.forEach((call, index) => {
      if (!this.calls.children[index]) this.calls.append(make('section', { class: 'call', 'aria-label': 'Tool call' }, make('p', { class: 'call-head' }), make('div')));
      const [head, body] = this.calls.children[index].children;
      if (head.dataset.name !== call.name) {
        head.dataset.name = call.name;
        head.replaceChildren(icon('tool'), ' Calls ', make('code', {}, call.name || '…'));
      }
      if (body.dataset.text === call.arguments) return;
      body.dataset.text = call.arguments;
      body.replaceChildren(showArguments(call.arguments));
    });
  }

  /** The answer has ended: shows its error, figures and controls. */
  finish() {
    const { message } = this;
    if (this.generation) return;
    this.problem.hidden = true;
    this.unfinished = message.pending === true;
    if (message.error) this.drawProblem(message.error);
    else if (message.pending) {
      if (!this.isGeneratedElsewhere()) this.drawProblem({ code: 'interrupted', message: 'This answer was interrupted: the page was closed before it was complete.' });
    } else if (!message.content && !message.calls?.length && !message.stopped) this.drawProblem({ code: 'empty', message: 'The model returned an empty answer.' });
    this.footer.replaceChildren(...[
      this.versions(),
      this.bar(this.copyButton(), iconButton('again', 'Regenerate the answer', () => this.actions.regenerate(message), { 'data-action': 'regenerate' })),
      this.figures(),
    ].filter(Boolean));
    if (this.last && message.calls?.length && message.finish === 'tool_calls' && !this.resultForm) this.askResults();
  }

  /** Draws changes made in another tab. */
  catchUp() {
    if (!this.unfinished || this.generation) return;
    this.draw();
    this.finish();
  }

  drawProblem(error) {
    this.problem.hidden = false;
    const parts = [];
    if (error.code === 'context_length_exceeded') {
      parts.push(make('strong', {}, 'This chat is longer than the model’s context.'), make('p', {}, explainContext(error.message, this.actions.contextLength())));
      parts.push(make('button', { type: 'button', class: 'primary', onclick: () => this.actions.restart(this.message) }, 'Start a new chat with this message'));
    } else {
      parts.push(make('p', {}, error.message), make('button', { type: 'button', class: 'quiet', onclick: () => this.actions.retry(this.message) }, 'Try again'));
    }
    this.problem.replaceChildren(...parts);
  }

  figures() {
    const { stats = {}, stopped, finish } = this.message;
    const parts = [];
    if (stopped) parts.push('stopped');
    else if (finish === 'length') parts.push('token limit reached');
    if (stats.tokens !== undefined) parts.push(plural(stats.tokens, 'token'));
    if (stats.rate !== undefined) parts.push(`${formatRate(stats.rate)} tok/s`);
    if (stats.firstSeconds !== undefined) parts.push(`first token after ${formatSeconds(stats.firstSeconds)}`);
    if (stats.promptTokens !== undefined) parts.push(stats.cachedTokens ? `${formatCount(stats.cachedTokens)} of ${formatCount(stats.promptTokens)} prompt tokens cached` : plural(stats.promptTokens, 'prompt token'));
    return parts.length ? make('p', { class: 'figures' }, parts.join(' · ')) : null;
  }

  versions() {
    const { all, index } = versionsOf(this.conversation, this.message);
    if (all.length < 2) return null;
    const go = (step) => () => this.actions.show(all[index + step], step);
    return make('div', { class: 'versions', role: 'group', 'aria-label': 'Versions' },
      iconButton('left', 'Previous version', go(-1), { disabled: index === 0 }),
      make('span', {}, `${index + 1}/${all.length}`),
      iconButton('right', 'Next version', go(1), { disabled: index === all.length - 1 }));
  }

  bar(...buttons) {
    return make('div', { class: 'actions' }, ...buttons);
  }

  copyButton() {
    return iconButton('copy', 'Copy', (event) => this.actions.copy(this.message.content, event.currentTarget), { 'data-action': 'copy-message' });
  }

  /** Replaces the bubble by a text field. */
  startEdit() {
    const field = make('textarea', { 'aria-label': 'Edit the message', rows: '3', dir: 'auto' });
    field.value = this.message.content;
    const leave = () => {
      this.buildQuestion();
      this.element.querySelector('button')?.focus();
    };
    const send = () => {
      if (field.value.trim()) this.actions.edit(this.message, field.value);
    };
    field.addEventListener('keydown', (event) => {
      if (composing(event)) return;
      if (event.key === 'Escape') {
        event.stopPropagation();
        leave();
      } else if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        send();
      }
    });
    this.element.replaceChildren(make('div', { class: 'edit' }, field, make('div', { class: 'buttons' },
      make('button', { type: 'button', class: 'quiet', onclick: leave }, 'Cancel'),
      make('button', { type: 'button', class: 'primary', onclick: send }, 'Send'))));
    field.style.height = `${Math.min(field.scrollHeight + 2, 400)}px`;
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  askResults() {
    const fields = this.message.calls.map((call) => make('textarea', { rows: '2', 'aria-label': `Result of ${call.name}`, placeholder: `Result of ${call.name}` }));
    this.resultForm = make('form', { class: 'results', onsubmit: (event) => {
      event.preventDefault();
      this.actions.results(this.message, fields.map((field) => field.value));
    } }, make('p', { class: 'soft' }, 'The model is waiting for these results. This page does not run tools: enter the results yourself.'), ...fields, make('div', { class: 'buttons' }, make('button', { type: 'submit', class: 'primary' }, 'Send the results')));
    this.calls.after(this.resultForm);
  }
}

function showArguments(text) {
  try {
    const value = JSON.parse(text);
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      const entries = Object.entries(value);
      if (entries.length === 0) return make('p', { class: 'soft' }, 'no arguments');
      return make('dl', {}, ...entries.flatMap(([name, item]) => [make('dt', {}, name), make('dd', {}, typeof item === 'string' ? item : JSON.stringify(item, null, 1))]));
    }
  } catch {
    // Incomplete JSON is shown as text.
  }
  return make('pre', { tabindex: '0' }, text);
}

/** A sentence with both token counts, or the server’s own words when they cannot be found there. */
export function explainContext(words, contextLength) {
  const numbers = (words.match(/\d[\d,]*/g) ?? []).map((found) => Number(found.replace(/,/g, ''))).filter((value) => value > 0);
  const limit = contextLength && numbers.includes(contextLength) ? contextLength : numbers.length >= 2 ? Math.min(...numbers) : contextLength;
  const wanted = numbers.filter((value) => value > (limit ?? 0)).sort((a, b) => a - b)[0];
  if (!limit || !wanted) return words;
  return `The conversation has ${formatCount(wanted)} tokens, but the context holds ${formatCount(limit)}. Start a new chat, shorten an earlier message, or start the server with a larger --context.`;
}
