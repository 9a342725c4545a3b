// Inline markdown: one run of text becomes a list of plain nodes.
//
// A node is either a string or { tag, attrs, children }; nothing here touches the DOM, so that the tests
// run without one. Raw HTML is never a node: it stays text. The one invariant: a link node's address has
// passed `safeUrl`.

const SCHEMES = new Set(['http:', 'https:', 'mailto:']);
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const ENTITIES = {
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', hellip: '…',
  mdash: '—', ndash: '–', rarr: '→', larr: '←', times: '×', deg: '°', le: '≤', ge: '≥', ne: '≠', middot: '·', bull: '•',
};
/** Past so many emphasis marks in one run, marks are text: keeps hostile input cheap. */
const MARKS_MAX = 2000;
/** How deep one link text may lie in another pair of brackets. */
const NESTING_MAX = 24;

/** Builds a plain node. */
export function node(tag, attrs = {}, children = []) {
  return { tag, attrs, children };
}

/** The address in a form that is safe to follow, or null. Relative addresses are refused: an answer has no place to be relative to. */
export function safeUrl(raw) {
  if (raw.length > 2048) return null;
  try {
    const url = new URL(raw.trim());
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Parses one run of text. With `open` the text is still being written, and emphasis, code and links whose
 * end has not come yet are shown as if it had, so that marks do not flicker.
 */
export function parseInline(text, open = false, depth = 0) {
  const parts = [];
  const brackets = [];
  const missing = new Set(); // lengths of backtick runs, and ends of formulas, that do not come further on
  let plain = '';
  let marks = 0;
  let at = 0;

  const flush = () => {
    if (plain) parts.push(plain);
    plain = '';
  };
  const add = (item) => {
    flush();
    parts.push(item);
  };

  while (at < text.length) {
    const char = text[at];
    if (char === '\\') {
      const math = mathAt(text, at, missing);
      if (math) {
        add(node('span', { class: 'math' }, [math.source]));
        at = math.end;
      } else if (text[at + 1] === '\n') {
        add(node('br'));
        at += 2;
      } else if (at + 1 < text.length && PUNCTUATION.test(text[at + 1])) {
        plain += text[at + 1];
        at += 2;
      } else {
        plain += char;
        at += 1;
      }
    } else if (char === '$' && text[at + 1] === '$') {
      const end = text.indexOf('$$', at + 2);
      if (end > at + 2) {
        add(node('span', { class: 'math' }, [text.slice(at, end + 2)]));
        at = end + 2;
      } else {
        plain += '$$';
        at += 2;
      }
    } else if (char === '`') {
      const length = runLength(text, at);
      const end = missing.has(length) ? -1 : closingRun(text, at + length, length);
      if (end >= 0) {
        add(node('code', {}, [codeText(text.slice(at + length, end))]));
        at = end + length;
      } else if (open && length === 1 && at + 1 < text.length) {
        add(node('code', {}, [codeText(text.slice(at + 1))]));
        at = text.length;
      } else {
        missing.add(length);
        plain += text.slice(at, at + length);
        at += length;
      }
    } else if ((char === '*' || char === '_' || char === '~') && marks < MARKS_MAX) {
      const length = runLength(text, at);
      add(markAt(text, at, length));
      marks += 1;
      at += length;
    } else if (char === '!' && text[at + 1] === '[') {
      flush();
      brackets.push({ index: parts.length, active: true });
      parts.push('![');
      at += 2;
    } else if (char === '[') {
      flush();
      brackets.push({ index: parts.length, active: true });
      parts.push('[');
      at += 1;
    } else if (char === ']') {
      flush();
      const opener = brackets.pop();
      const target = opener && opener.active && depth + brackets.length < NESTING_MAX ? targetAt(text, at + 1, open) : null;
      if (!target) {
        plain += ']';
        at += 1;
        continue;
      }
      const inside = parts.splice(opener.index).slice(1);
      const children = resolveMarks(inside, false);
      const url = safeUrl(target.url);
      // An image is shown as a link to it: the page loads nothing from elsewhere.
      if (url) {
        parts.push(link(url, children.length ? children : [url]));
        for (const outer of brackets) outer.active = false;
      } else {
        parts.push(...children);
      }
      at = target.end;
    } else if (char === '<') {
      const tag = /^<(?:(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)|br\s*\/?)>/i.exec(text.slice(at, at + 2100));
      const url = tag && tag[1] ? safeUrl(tag[1]) : null;
      if (tag && !tag[1]) {
        add(node('br'));
        at += tag[0].length;
      } else if (url) {
        add(link(url, [tag[1]]));
        at += tag[0].length;
      } else {
        plain += char;
        at += 1;
      }
    } else if (char === 'h' && text.startsWith('http', at) && !/\w/.test(text[at - 1] ?? ' ')) {
      const address = bareAddress(text, at);
      const url = address && safeUrl(address);
      if (url) {
        add(link(url, [address]));
        at += address.length;
      } else {
        plain += char;
        at += 1;
      }
    } else if (char === '&') {
      const entity = /^&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|([a-z]{2,8}));/i.exec(text.slice(at, at + 12));
      const decoded = entity && decodeEntity(entity);
      plain += decoded || char;
      at += decoded ? entity[0].length : 1;
    } else if (char === '\n') {
      // What the model wrote on two lines stays on two lines.
      plain = plain.trimEnd();
      add(node('br'));
      at += 1;
      while (text[at] === ' ') at += 1;
    } else {
      plain += char;
      at += 1;
    }
  }
  flush();
  return resolveMarks(parts, open);
}

/** The text of plain nodes, without marks: for announcements, titles and the tests. */
export function plainText(nodes) {
  let out = '';
  for (const item of nodes) {
    if (typeof item === 'string') out += item;
    else out += item.tag === 'br' ? '\n' : plainText(item.children);
  }
  return out;
}

function link(url, children) {
  return node('a', { href: url, rel: 'noopener noreferrer nofollow', target: '_blank' }, children);
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function closingRun(text, from, length) {
  let at = text.indexOf('`', from);
  while (at >= 0) {
    const run = runLength(text, at);
    if (run === length) return at;
    at = text.indexOf('`', at + run);
  }
  return -1;
}

function codeText(raw) {
  const text = raw.replace(/\n/g, ' ');
  const padded = text.length > 2 && text.startsWith(' ') && text.endsWith(' ') && text.trim() !== '';
  return padded ? text.slice(1, -1) : text;
}

/** `\( … \)` and `\[ … \]`: shown as written, so that backslashes and underscores survive. */
function mathAt(text, at, missing) {
  const close = { '(': '\\)', '[': '\\]' }[text[at + 1]];
  if (!close || missing.has(close)) return null;
  const end = text.indexOf(close, at + 2);
  if (end >= 0) return { source: text.slice(at, end + 2), end: end + 2 };
  missing.add(close);
  return null;
}

function decodeEntity([, decimal, hex, name]) {
  if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : null;
  const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
  if (code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return '\ufffd';
  return String.fromCodePoint(code);
}

/** `(address "title")` after a closing bracket. */
function targetAt(text, at, open) {
  if (text[at] !== '(') return null;
  const rest = text.slice(at, at + 2600);
  const found = /^\(\s*(?:<([^<>\n]*)>|((?:[^\s()]|\([^\s()]*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/.exec(rest);
  if (found) return { url: found[1] ?? found[2], end: at + found[0].length };
  if (open && /^\([^\s()]*$/.test(rest)) return { url: '', end: text.length };
  return null;
}

function bareAddress(text, at) {
  const found = /^https?:\/\/[^\s<>"'`*|\\]+/i.exec(text.slice(at, at + 2050));
  if (!found) return null;
  let address = found[0];
  for (;;) {
    const last = address.at(-1);
    const unbalanced = last === ')' && address.split(')').length > address.split('(').length;
    if (!unbalanced && !/[.,;:!?\]_~]/.test(last)) return address;
    address = address.slice(0, -1);
  }
}

/** Whether a run of marks may open or close emphasis: CommonMark's flanking rules. */
function markAt(text, at, length) {
  const before = text[at - 1] ?? ' ';
  const after = text[at + length] ?? ' ';
  const spaceBefore = /\s/.test(before);
  const spaceAfter = /\s/.test(after);
  const pointBefore = /[\p{P}\p{S}]/u.test(before);
  const pointAfter = /[\p{P}\p{S}]/u.test(after);
  const left = !spaceAfter && (!pointAfter || spaceBefore || pointBefore);
  const right = !spaceBefore && (!pointBefore || spaceAfter || pointAfter);
  const char = text[at];
  const word = char === '_';
  return {
    mark: char,
    count: length,
    original: length,
    opens: word ? left && (!right || pointBefore) : left,
    closes: word ? right && (!left || pointAfter) : right,
  };
}

/** Pairs the marks of a run and returns plain nodes. */
function resolveMarks(parts, open) {
  const out = [];
  const openers = [];
  const wrap = (position, tag) => {
    const children = settle(out.splice(position + 1));
    while (openers.length && openers.at(-1) > position) openers.pop();
    return node(tag, {}, children);
  };

  for (const part of parts) {
    if (part.mark === undefined) {
      out.push(part);
      continue;
    }
    const closer = { ...part };
    while (closer.closes && closer.count > 0) {
      const index = openers.findLastIndex((position) => pairs(out[position], closer));
      if (index < 0) break;
      const position = openers[index];
      const opener = out[position];
      const used = closer.mark === '~' ? closer.count : Math.min(2, opener.count, closer.count);
      const wrapped = wrap(position, closer.mark === '~' ? 'del' : used === 2 ? 'strong' : 'em');
      opener.count -= used;
      closer.count -= used;
      if (opener.count === 0) {
        out.pop();
        openers.pop();
      }
      out.push(wrapped);
    }
    if (closer.count > 0) {
      if (closer.opens) openers.push(out.length);
      out.push(closer);
    }
  }
  while (open && openers.length) {
    const position = openers.at(-1);
    const opener = out[position];
    if (opener.count > 3 || position === out.length - 1 || opener.mark === '~') {
      openers.pop();
      continue;
    }
    const wrapped = wrap(position, opener.count >= 2 ? 'strong' : 'em');
    out.pop();
    openers.pop();
    out.push(wrapped);
  }
  return settle(out);
}

function pairs(opener, closer) {
  if (opener.mark !== closer.mark) return false;
  if (closer.mark === '~') return opener.count === closer.count && closer.count <= 2;
  const both = (opener.closes || closer.opens) && (opener.original + closer.original) % 3 === 0;
  return !both || (opener.original % 3 === 0 && closer.original % 3 === 0);
}

/** Turns marks that found no partner back into text, and joins neighbouring strings. */
function settle(parts) {
  const out = [];
  for (const part of parts) {
    const item = part.mark === undefined ? part : part.mark.repeat(part.count);
    if (typeof item === 'string' && typeof out.at(-1) === 'string') out[out.length - 1] += item;
    else if (item !== '') out.push(item);
  }
  return out;
}
