// The dialogs: settings, keyboard shortcuts, API key.

import { byId, iconButton, make } from './dom.js';
import { NUMBERS, parseJsonField, parseNumber, saveSettings } from './settings.js';

const NUMBER_FIELDS = [
  ['temperature', 'Temperature', 'Randomness of sampling. 0 always takes the most likely token.', '0.1'],
  ['topP', 'Top p', 'Samples from the most likely tokens that together have this probability.', '0.05'],
  ['topK', 'Top k', 'Samples from this number of most likely tokens.', '1'],
  ['minP', 'Min p', 'Drops tokens below this share of the most likely token’s probability.', '0.01'],
  ['repetition', 'Repetition penalty', 'Above 1, tokens that occurred before become less likely.', '0.05'],
  ['maxTokens', 'Max tokens', 'The maximum length of an answer.', '1'],
  ['seed', 'Seed', 'The same seed and prompt give the same answer.', '1'],
];

/** The shortcuts, in groups of [keys, action]. */
export const SHORTCUTS = [
  ['Anywhere', [
    ['Alt N', 'new chat'], ['Alt ↑ / Alt ↓', 'previous or next conversation'], ['Alt P', 'open or close the activity panel'], ['Alt S', 'settings'], ['Alt R', 'regenerate the answer'], ['Ctrl K', 'search conversations'], ['Esc', 'stop the answer, or close the open panel'],
  ]],
  ['In the message field', [['Enter', 'send'], ['Shift Enter', 'new line'], ['↑ when empty', 'edit your last message']]],
  ['In the list of conversations', [['↑ ↓', 'move'], ['Enter', 'open'], ['F2', 'rename'], ['Delete', 'delete, with undo']]],
  ['Outside text fields', [['/', 'go to the message field'], ['n', 'new chat'], ['j / k', 'next or previous conversation'], ['r', 'regenerate the answer'], ['p', 'open or close the activity panel'], ['s', 'settings'], ['t', 'switch the theme'], ['?', 'this list']]],
];

/** Opens the settings; `conversation` may be null. `done()` is called when they have been saved. */
export function openSettings(settings, conversation, done) {
  const dialog = byId('settings');
  const form = byId('settings-form');
  const system = make('textarea', { id: 'set-system', rows: '4', placeholder: 'You are a helpful assistant.' });
  system.value = conversation ? conversation.system : settings.system;
  const keep = make('input', { type: 'checkbox', id: 'set-keep' });
  keep.checked = !conversation || conversation.system === settings.system;
  const thinking = make('select', { id: 'set-thinking' }, ...[['auto', 'model default'], ['on', 'on'], ['off', 'off']].map(([value, text]) => make('option', { value }, text)));
  thinking.value = settings.thinking;
  const schema = make('textarea', { id: 'set-schema', rows: '5', spellcheck: 'false', class: 'mono', placeholder: '{"type": "object", "properties": {"name": {"type": "string"}}}', 'aria-describedby': 'set-schema-error' });
  schema.value = settings.schema;
  const tools = make('textarea', { id: 'set-tools', rows: '5', spellcheck: 'false', class: 'mono', placeholder: '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]', 'aria-describedby': 'set-tools-error' });
  tools.value = settings.tools;
  const numbers = Object.fromEntries(NUMBER_FIELDS.map(([name, , , step]) => {
    const [, low, high] = NUMBERS[name];
    const input = make('input', { type: 'number', id: `set-${name}`, step, min: low, max: high, inputmode: 'decimal', placeholder: 'server default', 'aria-describedby': `set-${name}-help set-${name}-error` });
    input.value = settings[name] ?? '';
    return [name, input];
  }));
  const error = (id) => make('p', { class: 'field-error', id: `set-${id}-error`, role: 'alert' });
  const field = (id, label, input, help) => make('div', { class: 'field' }, make('label', { for: `set-${id}` }, label), input, help ? make('p', { class: 'caption', id: `set-${id}-help` }, help) : null, error(id));

  const save = () => {
    const wrong = [];
    const changed = {};
    const read = (id, work) => {
      const place = form.querySelector(`#set-${id}-error`);
      const input = form.querySelector(`#set-${id}`);
      place.textContent = '';
      input.removeAttribute('aria-invalid');
      try {
        return work();
      } catch (problem) {
        place.textContent = `This value ${problem.message}.`;
        input.setAttribute('aria-invalid', 'true');
        wrong.push(input);
        return null;
      }
    };
    for (const [name, input] of Object.entries(numbers)) {
      // A number field with letters in it has an empty value; only its validity shows it.
      changed[name] = read(name, () => {
        if (input.validity.badInput) throw new Error('must be a number');
        return parseNumber(name, input.value);
      });
    }
    read('schema', () => parseJsonField(schema.value, 'object'));
    read('tools', () => parseJsonField(tools.value, 'list'));
    if (wrong.length) {
      wrong[0].closest('details')?.setAttribute('open', '');
      wrong[0].focus();
      return;
    }
    Object.assign(settings, changed, { thinking: thinking.value, schema: schema.value, tools: tools.value });
    if (conversation) conversation.system = system.value;
    if (keep.checked || !conversation) settings.system = system.value;
    saveSettings(settings);
    dialog.close();
    done();
  };
  const reset = () => {
    for (const input of Object.values(numbers)) input.value = '';
    thinking.value = 'auto';
    schema.value = '';
    tools.value = '';
  };
  form.replaceChildren(
    make('div', { class: 'card-head' }, make('h2', {}, 'Settings'), iconButton('close', 'Close without saving', () => dialog.close())),
    field('system', 'System prompt', system, 'Sent to the model before the conversation.'),
    conversation ? make('p', { class: 'check' }, keep, make('label', { for: 'set-keep' }, 'Use for new chats too')) : null,
    field('thinking', 'Thinking', thinking, 'Whether a model that supports thinking thinks before it answers.'),
    make('fieldset', {}, make('legend', {}, 'Sampling'), make('div', { class: 'fields' }, ...NUMBER_FIELDS.map(([name, label, help]) => field(name, label, numbers[name], help)))),
    make('details', { class: 'advanced', open: Boolean(settings.schema || settings.tools) }, make('summary', {}, 'Advanced'),
      field('schema', 'JSON schema of the answer', schema, 'Constrains the answer to JSON that matches this schema.'),
      field('tools', 'Tools', tools, 'A list in the format of the OpenAI API. When the model calls a tool, you enter its result.')),
    make('div', { class: 'buttons' }, make('button', { type: 'button', class: 'quiet', onclick: reset }, 'Reset'), make('span', { class: 'spacer' }),
      make('button', { type: 'button', class: 'quiet', onclick: () => dialog.close() }, 'Cancel'), make('button', { type: 'submit', class: 'primary' }, 'Save')),
  );
  form.onsubmit = (event) => {
    event.preventDefault();
    save();
  };
  dialog.showModal();
  system.focus();
}

/** Closes a dialog at a click outside it. A click that began inside, such as a selection dragged too far, does not count. */
export function closeOnOutsideClick(dialog) {
  const isOutside = ({ clientX, clientY }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    return clientX < left || clientX > right || clientY < top || clientY > bottom;
  };
  let began = false;
  dialog.addEventListener('pointerdown', (event) => {
    began = isOutside(event);
  });
  dialog.addEventListener('click', (event) => {
    if (began && event.target === dialog && isOutside(event)) dialog.close();
  });
}

/** Opens the list of shortcuts. */
export function openShortcuts(settings) {
  const dialog = byId('shortcuts');
  const single = make('input', { type: 'checkbox', id: 'single-keys' });
  single.checked = settings.singleKeys;
  single.addEventListener('change', () => {
    settings.singleKeys = single.checked;
    saveSettings(settings);
  });
  const keys = (text) => text.split(' ').map((part) => (['/', 'when', 'empty'].includes(part) && text !== '/' ? ` ${part} ` : make('kbd', {}, part)));
  dialog.replaceChildren(
    make('div', { class: 'card-head' }, make('h2', {}, 'Keyboard shortcuts'), iconButton('close', 'Close', () => dialog.close())),
    make('div', { class: 'shortcut-groups' }, ...SHORTCUTS.map(([name, rows]) => make('section', {}, make('h3', {}, name), make('dl', {}, ...rows.flatMap(([combination, words]) => [make('dt', {}, ...keys(combination)), make('dd', {}, words)]))))),
    make('p', { class: 'check' }, single, make('label', { for: 'single-keys' }, 'Enable the single-key shortcuts of the last group (? always works)')),
  );
  dialog.showModal();
}

/** Prompts for the API key until `unlock(key)` accepts it or the user closes the dialog. */
export function askKey(unlock) {
  const dialog = byId('key');
  if (dialog.open) return;
  const input = byId('key-input');
  const error = byId('key-error');
  byId('key-form').onsubmit = async (event) => {
    event.preventDefault();
    error.textContent = '';
    if (await unlock(input.value.trim())) {
      input.value = '';
      dialog.close();
    } else {
      error.textContent = 'The server rejected this key.';
      input.select();
    }
  };
  error.textContent = '';
  dialog.showModal();
  input.focus();
}
