// What the user prefers: kept in localStorage, checked when read, turned into request fields.
//
// An empty field means that the server decides. The one invariant: whatever localStorage holds, `loadSettings`
// returns settings of the right types.

const STORAGE_NAME = 'millstream.settings';

/** Numbers: [request field, lowest, highest, whole]. */
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

/** The settings as kept, or the defaults. */
export function loadSettings() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORAGE_NAME) ?? '{}') ?? {};
  } catch {
    // Unreadable settings are as good as none.
  }
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (fits(name, kept[name])) settings[name] = kept[name];
  return settings;
}

/** Keeps the settings; a browser that refuses only forgets them. */
export function saveSettings(settings) {
  try {
    localStorage.setItem(STORAGE_NAME, JSON.stringify(settings));
  } catch {
    // Private windows may refuse: the settings then last as long as the tab.
  }
}

/** Keeps `settings` in step with other tabs; `changed()` is called after a change there. */
export function followSettings(settings, changed) {
  addEventListener('storage', (event) => {
    if (event.key !== STORAGE_NAME) return;
    Object.assign(settings, loadSettings());
    changed();
  });
}

/** Reads a number field: null when empty, an Error with a sentence when wrong. */
export function parseNumber(name, text) {
  const [, low, high, whole] = NUMBERS[name];
  if (text.trim() === '') return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < low || value > high) throw new Error(`between ${low} and ${high}`);
  if (whole && !Number.isInteger(value)) throw new Error('a whole number');
  return value;
}

/** Reads a JSON field: null when empty. */
export function parseJsonField(text, kind) {
  if (text.trim() === '') return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`not JSON: ${error.message}`);
  }
  if (kind === 'list' && !Array.isArray(value)) throw new Error('a list of tools is expected');
  if (kind === 'object' && (typeof value !== 'object' || value === null || Array.isArray(value))) throw new Error('an object is expected');
  return value;
}

/** The fields of a request that the settings ask for. */
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
