// The dialogs: settings, keyboard shortcuts, the key of the server.

import { byId, iconButton, make } from './dom.js';
import { NUMBERS, parseJsonField, parseNumber, saveSettings } from './settings.js';

const NUMBER_FIELDS = [
  ['temperature', 'Temperature', 'How freely words are chosen: 0 always takes the likeliest.', '0.1'],
  ['topP', 'Top p', 'Only the likeliest words that make up this share.', '0.05'],
  ['topK', 'Top k', 'Only so many of the likeliest words.', '1'],
  ['minP', 'Min p', 'Only words at least this likely, relative to the likeliest.', '0.01'],
  ['repetition', 'Repetition penalty', 'Above 1 makes words that came before less likely.', '0.05'],
  ['maxTokens', 'Max tokens', 'Where an answer is cut at the latest.', '1'],
  ['seed', 'Seed', 'The same seed and prompt give the same answer.', '1'],
];

/** The shortcuts, as [keys, what they do]; the first group works outside text fields only. */
export const SHORTCUTS = [
  ['Anywhere', [
    ['Alt N', 'new chat'], ['Alt ↑ / Alt ↓', 'previous or next conversation'], ['Alt P', 'machine at work, open or close'], ['Alt S', 'settings'], ['Alt R', 'another answer'], ['Ctrl K', 'search conversations'], ['Esc', 'stop the answer; close what is open'],
  ]],
  ['In the message field', [['Enter', 'send'], ['Shift Enter', 'new line'], ['↑ when empty', 'edit your last message']]],
  ['In the list of conversations', [['↑ ↓', 'move'], ['Enter', 'open'], ['F2', 'rename'], ['Delete', 'delete, with undo']]],
  ['Outside text fields', [['/', 'message field'], ['n', 'new chat'], ['j / k', 'next or previous conversation'], ['r', 'another answer'], ['p', 'machine at work'], ['s', 'settings'], ['t', 'light, dark or as the system'], ['?', 'this list']]],
];

/** Opens the settings; `conversation` may be null. `done()` is called when they were changed. */
export function openSettings(settings, conversation, done) {
  const dialog = byId('settings');
  const form = byId('settings-form');
  const system = make('textarea', { id: 'set-system', rows: '4', placeholder: 'You are a helpful miller.' });
  system.value = conversation ? conversation.system : settings.system;
  const keep = make('input', { type: 'checkbox', id: 'set-keep' });
  keep.checked = !conversation || conversation.system === settings.system;
  const thinking = make('select', { id: 'set-thinking' }, ...[['auto', 'as the model likes'], ['on', 'on'], ['off', 'off']].map(([value, text]) => make('option', { value }, text)));
  thinking.value = settings.thinking;
  const schema = make('textarea', { id: 'set-schema', rows: '5', spellcheck: 'false', class: 'mono', placeholder: '{"type": "object", "properties": {"name": {"type": "string"}}}', 'aria-describedby': 'set-schema-error' });
  schema.value = settings.schema;
  const tools = make('textarea', { id: 'set-tools', rows: '5', spellcheck: 'false', class: 'mono', placeholder: '[{"type": "function", "function": {"name": "…", "parameters": {…}}}]', 'aria-describedby': 'set-tools-error' });
  tools.value = settings.tools;
  const numbers = Object.fromEntries(NUMBER_FIELDS.map(([name, , , step]) => {
    const [, low, high] = NUMBERS[name];
    const input = make('input', { type: 'number', id: `set-${name}`, step, min: low, max: high, inputmode: 'decimal', placeholder: 'server decides', 'aria-describedby': `set-${name}-help set-${name}-error` });
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
        place.textContent = `Expected: ${problem.message}`;
        input.setAttribute('aria-invalid', 'true');
        wrong.push(input);
        return null;
      }
    };
    for (const [name, input] of Object.entries(numbers)) {
      // A number field with letters in it has an empty value, and says so only here.
      changed[name] = read(name, () => {
        if (input.validity.badInput) throw new Error('a number');
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
    field('system', 'System prompt', system, 'Said to the model before everything else.'),
    conversation ? make('p', { class: 'check' }, keep, make('label', { for: 'set-keep' }, 'Also for new chats')) : null,
    field('thinking', 'Thinking', thinking, 'Whether a model that can think does so before it answers.'),
    make('fieldset', {}, make('legend', {}, 'Sampling'), make('div', { class: 'fields' }, ...NUMBER_FIELDS.map(([name, label, help]) => field(name, label, numbers[name], help)))),
    make('details', { class: 'advanced', open: Boolean(settings.schema || settings.tools) }, make('summary', {}, 'Advanced'),
      field('schema', 'Answer in this JSON schema', schema, 'The answer can then be nothing but JSON of this shape.'),
      field('tools', 'Tools', tools, 'A list in the form of the OpenAI API. When the model calls one, you write its result.')),
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

/** Closes a dialog at a click beside it. One that began inside, such as a selection drawn too far, does not count. */
export function closeBeside(dialog) {
  const isBeside = ({ clientX, clientY }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    return clientX < left || clientX > right || clientY < top || clientY > bottom;
  };
  let began = false;
  dialog.addEventListener('pointerdown', (event) => {
    began = isBeside(event);
  });
  dialog.addEventListener('click', (event) => {
    if (began && event.target === dialog && isBeside(event)) dialog.close();
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
    make('p', { class: 'check' }, single, make('label', { for: 'single-keys' }, 'Use the single keys of the last group (but for ?)')),
  );
  dialog.showModal();
}

/** Asks for the server's key until `unlock(key)` says that it opens, or the user leaves it. */
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
      error.textContent = 'The server does not take this key.';
      input.select();
    }
  };
  error.textContent = '';
  dialog.showModal();
  input.focus();
}
