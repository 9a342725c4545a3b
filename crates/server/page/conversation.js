// Conversations as plain data: a tree of messages with one chosen path.
//
// Editing a message or regenerating an answer adds a sibling; nothing is overwritten. Does not store or draw.
// The one invariant: `messages` lists parents before children, and every parent exists.

/** Marks an exported file. */
export const FILE_FORMAT = 'millstream-conversations';
const FILE_VERSION = 1;
const ROLES = new Set(['user', 'assistant', 'tool']);
const ROOT = '';
const ID = /^[\w-]{1,64}$/;

/** A random id. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, '0')).join('');
}

/** An empty conversation. */
export function newConversation(system = '') {
  const now = Date.now();
  return { id: newId(), title: '', renamed: false, created: now, updated: now, system, messages: [], choice: {} };
}

/** Appends a message below `parent` (null: at the start), chooses it and returns it. */
export function addMessage(conversation, parent, fields) {
  const message = { id: newId(), parent: parent ?? null, created: Date.now(), content: '', ...fields };
  conversation.messages.push(message);
  conversation.choice[message.parent ?? ROOT] = message.id;
  conversation.updated = Date.now();
  if (!conversation.renamed && !conversation.title && message.role === 'user') conversation.title = titleOf(message.content);
  return message;
}

/** The messages below a parent, oldest first. */
export function childrenOf(conversation, parent) {
  return conversation.messages.filter((message) => message.parent === (parent ?? null));
}

/** The chosen path from the first message to the last. */
export function pathOf(conversation) {
  const children = new Map();
  for (const message of conversation.messages) {
    const key = message.parent ?? ROOT;
    if (!children.has(key)) children.set(key, []);
    children.get(key).push(message);
  }
  const path = [];
  for (let key = ROOT; children.has(key);) {
    const options = children.get(key);
    const chosen = options.find((message) => message.id === conversation.choice[key]) ?? options.at(-1);
    path.push(chosen);
    key = chosen.id;
  }
  return path;
}

/** A message's versions and which of them it is. */
export function versionsOf(conversation, message) {
  const all = childrenOf(conversation, message.parent);
  return { all, index: all.indexOf(message) };
}

/** Shows another version of a message. */
export function choose(conversation, message) {
  conversation.choice[message.parent ?? ROOT] = message.id;
}

/** Chooses the path that leads to a message. */
export function chooseTo(conversation, message) {
  for (let at = message; at; at = conversation.messages.find((other) => other.id === at.parent)) choose(conversation, at);
}

/** Removes a message, also from the copies of other tabs and the store, from which `adoptMessages` would restore it. */
export function dropMessage(conversation, message) {
  conversation.messages = conversation.messages.filter((other) => other !== message);
  conversation.dropped = [...(conversation.dropped ?? []), message.id];
}

/** Merges in another copy of the conversation: messages that are new there, and longer versions of pending ones. */
export function adoptMessages(conversation, other) {
  const dropped = new Set([...(conversation.dropped ?? []), ...(other.dropped ?? [])]);
  if (dropped.size) conversation.dropped = [...dropped];
  const known = new Map(conversation.messages.map((message) => [message.id, message]));
  for (const message of other.messages) {
    const mine = known.get(message.id);
    if (!mine) conversation.messages.push(message);
    else if (isLonger(message, mine)) {
      delete mine.pending;
      Object.assign(mine, message);
    }
  }
  conversation.messages = conversation.messages.filter((message) => !dropped.has(message.id));
  conversation.choice = { ...other.choice, ...conversation.choice };
}

/** Merges in a newer copy of the conversation; its messages stay the same objects. */
export function adopt(conversation, newer) {
  const { title, renamed, updated, system, choice } = newer;
  adoptMessages(conversation, newer);
  Object.assign(conversation, { title, renamed, updated, system, choice: { ...conversation.choice, ...choice } });
}

// Only a message that is being generated changes, and only in the tab that generates it: the longer copy is newer.
function isLonger(message, mine) {
  const length = ({ content, reasoning = '', calls = [] }) => content.length + reasoning.length + JSON.stringify(calls).length;
  return Boolean(mine.pending) && (!message.pending || length(message) > length(mine));
}

/** A title from the first words of a message. */
export function titleOf(text) {
  const line = text.trim().split('\n').find((part) => part.trim() !== '') ?? '';
  const words = line.replace(/[#*`>_]/g, '').replace(/\s+/g, ' ').trim();
  // Cut between characters, never inside an emoji.
  const characters = [...words];
  if (characters.length <= 60) return words || 'Untitled';
  const cut = characters.slice(0, 60).join('');
  const space = cut.lastIndexOf(' ');
  return `${(space > 30 ? cut.slice(0, space) : cut).trimEnd()}…`;
}

/** Whether every word of the query occurs in the conversation. */
export function matches(conversation, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return true;
  const text = [conversation.title, ...conversation.messages.map((message) => message.content)].join('\n').toLowerCase();
  return words.every((word) => text.includes(word));
}

/** The messages of a request: the chosen path up to, and without, `until`. */
export function requestMessages(conversation, until = null) {
  const out = conversation.system.trim() ? [{ role: 'system', content: conversation.system }] : [];
  for (const message of pathOf(conversation)) {
    if (until && message.id === until) break;
    if (message.role === 'tool') {
      out.push({ role: 'tool', tool_call_id: message.call, content: message.content });
    } else if (message.role === 'assistant') {
      const sent = { role: 'assistant', content: message.content };
      if (message.reasoning) sent.reasoning_content = message.reasoning;
      if (message.calls?.length) sent.tool_calls = message.calls.map((call) => ({ id: call.id, type: 'function', function: { name: call.name, arguments: call.arguments } }));
      out.push(sent);
    } else {
      out.push({ role: 'user', content: message.content });
    }
  }
  return out;
}

/** The text of a file with these conversations. */
export function exportText(conversations) {
  return `${JSON.stringify({ format: FILE_FORMAT, version: FILE_VERSION, exported: new Date().toISOString(), conversations }, null, 1)}\n`;
}

/** Reads the text of an export file; returns checked copies of its conversations. Throws an Error with a message for the user. */
export function importText(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error('the file is not JSON');
  }
  if (!isObject(file) || file.format !== FILE_FORMAT) throw new Error('the file was not exported by Millstream');
  if (file.version !== FILE_VERSION) throw new Error(`the file has version ${String(file.version)}, this page reads version ${FILE_VERSION}`);
  if (!Array.isArray(file.conversations)) throw new Error('the file has no list of conversations');
  return file.conversations.map((conversation, index) => checkConversation(conversation, `conversation ${index + 1}`));
}

/** The imported conversations to add to the existing ones: equal ones are skipped, changed ones become copies. */
export function mergeImported(existing, imported) {
  const known = new Map(existing.map((conversation) => [conversation.id, canonical(conversation)]));
  const added = [];
  for (const conversation of imported) {
    const text = canonical(conversation);
    if (known.get(conversation.id) === text) continue;
    const fresh = known.has(conversation.id) ? { ...conversation, id: newId(), title: `${conversation.title} (imported)` } : conversation;
    known.set(fresh.id, text);
    added.push(fresh);
  }
  return added;
}

/** The content of a conversation as a string that does not depend on the order of its fields. */
function canonical({ messages, system, title }) {
  return JSON.stringify({ messages, system, title }, (_, value) => (isObject(value) ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1))) : value));
}

function isObject(value) {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function text(value, where, optional = false) {
  if (optional && (value === undefined || value === null)) return '';
  if (typeof value !== 'string') throw new Error(`${where} is not a string`);
  return value;
}

function time(value) {
  return Number.isFinite(value) && value >= 0 && value < 8.64e15 ? value : Date.now();
}

function checkConversation(raw, where) {
  if (!isObject(raw)) throw new Error(`${where} is not an object`);
  if (!Array.isArray(raw.messages)) throw new Error(`${where} has no list of messages`);
  const ids = new Set();
  const messages = raw.messages.map((message, index) => {
    const checked = checkMessage(message, `message ${index + 1} of ${where}`);
    if (checked.parent !== null && !ids.has(checked.parent)) throw new Error(`message ${index + 1} of ${where} has a parent that is missing before it`);
    if (ids.has(checked.id)) throw new Error(`message ${index + 1} of ${where} has the id of another message`);
    ids.add(checked.id);
    return checked;
  });
  const choice = {};
  if (isObject(raw.choice)) {
    for (const [parent, child] of Object.entries(raw.choice)) if ((parent === ROOT || ids.has(parent)) && ids.has(child)) choice[parent] = child;
  }
  return {
    id: ID.test(text(raw.id, `the id of ${where}`)) ? raw.id : newId(),
    title: text(raw.title, `the title of ${where}`, true).slice(0, 300),
    renamed: raw.renamed === true,
    created: time(raw.created),
    updated: time(raw.updated),
    system: text(raw.system, `the system prompt of ${where}`, true),
    messages,
    choice,
  };
}

function checkMessage(raw, where) {
  if (!isObject(raw)) throw new Error(`${where} is not an object`);
  if (!ROLES.has(raw.role)) throw new Error(`${where} has the unknown role ${JSON.stringify(raw.role) ?? 'none'}`);
  const id = text(raw.id, `the id of ${where}`);
  if (!ID.test(id)) throw new Error(`${where} has no usable id`);
  const message = {
    id,
    parent: raw.parent === null || raw.parent === undefined ? null : text(raw.parent, `the parent of ${where}`),
    created: time(raw.created),
    content: text(raw.content, `the content of ${where}`),
    role: raw.role,
  };
  if (raw.reasoning) message.reasoning = text(raw.reasoning, `the reasoning of ${where}`);
  if (raw.call) message.call = text(raw.call, `the call of ${where}`);
  if (raw.stopped === true) message.stopped = true;
  if (raw.pending === true) message.pending = true;
  if (Array.isArray(raw.calls)) {
    message.calls = raw.calls.map((call) => {
      if (!isObject(call)) throw new Error(`a tool call of ${where} is not an object`);
      return { id: text(call.id, `a tool call of ${where}`), name: text(call.name, `a tool call of ${where}`), arguments: text(call.arguments, `a tool call of ${where}`) };
    });
  }
  if (isObject(raw.stats)) {
    message.stats = {};
    for (const [name, value] of Object.entries(raw.stats)) if (Number.isFinite(value)) message.stats[name] = value;
  }
  if (isObject(raw.error)) message.error = { message: text(raw.error.message, `the error of ${where}`), code: text(raw.error.code, `the error of ${where}`, true) };
  if (Number.isFinite(raw.thoughtSeconds)) message.thoughtSeconds = raw.thoughtSeconds;
  if (typeof raw.finish === 'string') message.finish = raw.finish;
  return message;
}
