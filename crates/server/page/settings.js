// The settings: stored in localStorage, checked when read, turned into request fields.
//
// An empty field means the server's default. The one invariant: whatever localStorage holds, `loadSettings`
// returns settings of the right types.

const STORAGE_NAME = 'millstream.settings';

/** Numbers: [request field, minimum, maximum, whole]. */
export const NUMBERS = {
  temperature: ['temperature', 0, 2, false],
  topP: ['top_p', 0, 1, false],
  topK: ['top_k', 0, 100_000, true],
  minP: ['min_p', 0, 1, false],
  repetition: ['repetition_penalty', 0.1, 2, false],
  maxTokens: ['max_tokens', 1, 10_000_000, true],
  seed: ['seed', 0, Number.MAX_SAFE_INTEGER, true],
};
const DEFAULTS = {
  system: '', thinking: 'auto', schema: '', tools: '', theme: 'auto', panel: null, singleKeys: true,
  ...Object.fromEntries(Object.keys(NUMBERS).map((name) => [name, null])),
};
const CHOICES = { thinking: ['auto', 'on', 'off'], theme: ['auto', 'light', 'dark'], panel: [null, true, false] };

/** The stored settings, or the defaults. */
export function loadSettings() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORAGE_NAME) ?? '{}') ?? {};
  } catch {
    // Unreadable settings count as none.
  }
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (fits(name, kept[name])) settings[name] = kept[name];
  return settings;
}

/** Stores the settings; where the browser refuses, they last as long as the tab. */
export function saveSettings(settings) {
  try {
    localStorage.setItem(STORAGE_NAME, JSON.stringify(settings));
  } catch {
    // Private windows may refuse.
  }
}

/** Applies changes made in other tabs to `settings`; `changed()` is called after each. */
export function followSettings(settings, changed) {
  addEventListener('storage', (event) => {
    if (event.key !== STORAGE_NAME) return;
    Object.assign(settings, loadSettings());
    changed();
  });
}

/** Reads a number field: null when empty; throws an Error that says what the value must be. */
export function parseNumber(name, text) {
  const [, low, high, whole] = NUMBERS[name];
  if (text.trim() === '') return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < low || value > high) throw new Error(`must be between ${low} and ${high}`);
  if (whole && !Number.isInteger(value)) throw new Error('must be a whole number');
  return value;
}

/** Reads a JSON field: null when empty. */
export function parseJsonField(text, kind) {
  if (text.trim() === '') return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`is not JSON: ${error.message}`);
  }
  if (kind === 'list' && !Array.isArray(value)) throw new Error('must be a list of tools');
  if (kind === 'object' && (typeof value !== 'object' || value === null || Array.isArray(value))) throw new Error('must be an object');
  return value;
}

/** The request fields that the settings set. */
export function requestFields(settings) {
  const fields = {};
  for (const [name, [field]] of Object.entries(NUMBERS)) if (settings[name] !== null) fields[field] = settings[name];
  if (settings.thinking !== 'auto') fields.enable_thinking = settings.thinking === 'on';
  const schema = parseJsonField(settings.schema, 'object');
  if (schema) fields.response_format = { type: 'json_schema', json_schema: { name: 'answer', strict: true, schema } };
  const tools = parseJsonField(settings.tools, 'list');
  if (tools?.length) fields.tools = tools;
  return fields;
}

function fits(name, value) {
  if (value === undefined) return false;
  if (name in NUMBERS) {
    const [, low, high, whole] = NUMBERS[name];
    return value === null || (Number.isFinite(value) && value >= low && value <= high && (!whole || Number.isInteger(value)));
  }
  if (name in CHOICES) return CHOICES[name].includes(value);
  return typeof value === typeof DEFAULTS[name];
}
