// Markdown blocks: text becomes a list of plain nodes, whole or as it streams in.
//
// Knows the blocks that models write: paragraphs, headings, lists, tables, quotes, fenced code, rules.
// Indented code and underlined headings are left out on purpose; models mean neither. The one invariant:
// however a text is cut into pieces, `MarkdownStream` ends with the blocks that `parseMarkdown` gives.

import { node, parseInline } from './inline.js';
import { highlight } from './highlight.js';

const FENCE = /^(\s*)(`{3,}|~{3,})(.*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+•]|\d{1,9}[.)])( +|$)(.*)$/;
const DELIMITER = /^ *\|?(?: *:?-+:? *\|)* *:?-+:? *\|? *$/;
/** Quotes and lists deeper than this are shown as text. */
const DEPTH_MAX = 12;

/** Parses a whole text. */
export function parseMarkdown(text) {
  return parseBlocks(clean(text).split('\n'), 0, false).map((block) => block.node);
}

/** A text that grows. Blocks that can no longer change are settled and are never parsed again. */
export class MarkdownStream {
  constructor() {
    /** Blocks that no later text can change. */
    this.settled = [];
    this.tail = '';
    this.parsed = 0;
    this.heldReturn = false;
  }

  /** Appends a piece of text, cut anywhere. */
  push(piece) {
    let text = this.heldReturn ? '\r' + piece : piece;
    this.heldReturn = text.endsWith('\r');
    if (this.heldReturn) text = text.slice(0, -1);
    this.tail += clean(text);
    this.settle();
  }

  /** The blocks after the settled ones. While the text is `open`, unfinished marks are drawn as if finished. */
  rest(open) {
    return parseBlocks(this.tail.split('\n'), 0, open).map((block) => block.node);
  }

  /** All blocks. */
  blocks(open = false) {
    return [...this.settled, ...this.rest(open)];
  }

  // Only whole lines decide: half a line may still turn into something else.
  settle() {
    const end = this.tail.lastIndexOf('\n');
    if (end < this.parsed) return;
    this.parsed = end + 1;
    const lines = this.tail.slice(0, end).split('\n');
    const blocks = parseBlocks(lines, 0, false);
    if (blocks.length < 2) return;
    const last = blocks.at(-1).line;
    for (const block of blocks.slice(0, -1)) this.settled.push(block.node);
    let offset = 0;
    for (let line = 0; line < last; line += 1) offset += lines[line].length + 1;
    this.tail = this.tail.slice(offset);
    this.parsed -= offset;
  }
}

function clean(text) {
  return text.replace(/\r\n?/g, '\n').replace(/\0/g, '\ufffd');
}

/** Parses lines into [{ node, line }], `line` being where the block begins. */
function parseBlocks(raw, depth, open) {
  const lines = raw.map((line) => line.replace(/^[ \t]+/, (space) => space.replace(/\t/g, '    ')));
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (lines[at].trim() === '') {
      at += 1;
      continue;
    }
    const read = fence(raw, lines, at) ?? heading(lines, at, open) ?? rule(lines, at)
      ?? (depth < DEPTH_MAX ? quote(lines, at, depth, open) ?? list(lines, at, depth, open) : null)
      ?? table(lines, at, open) ?? paragraph(lines, at, depth, open);
    // The first letter of the outermost block decides its direction; code always runs from left to right.
    if (depth === 0 && read.node.tag !== 'figure') read.node.attrs.dir = 'auto';
    blocks.push({ node: read.node, line: at });
    at = read.next;
  }
  return blocks;
}

function fence(raw, lines, at) {
  const opening = fenceAt(lines[at]);
  if (!opening) return null;
  const body = [];
  let next = at + 1;
  let closed = false;
  for (; next < lines.length && !closed; next += 1) {
    const closing = FENCE.exec(lines[next]);
    closed = closing !== null && closing[2][0] === opening.mark[0] && closing[2].length >= opening.mark.length && closing[3].trim() === '';
    if (!closed) body.push(dedent(raw[next], opening.indent));
  }
  // An unfinished line is not yet a line of the code: without this the last, empty one would show.
  if (!closed && body.at(-1) === '') body.pop();
  return { node: codeBlock(opening.language, body.join('\n')), next };
}

function fenceAt(line) {
  const found = FENCE.exec(line);
  if (!found || (found[2][0] === '`' && found[3].includes('`'))) return null;
  const language = /^[\w+#.-]{1,24}/.exec(found[3].trim().replace(/^\{?\.?/, ''));
  return { indent: found[1].length, mark: found[2], language: language ? language[0].toLowerCase() : '' };
}

function dedent(line, count) {
  let at = 0;
  while (at < count && line[at] === ' ') at += 1;
  return line.slice(at);
}

function codeBlock(language, code) {
  const children = highlight(code, language).map(([kind, text]) => (kind ? node('span', { class: `t-${kind}` }, [text]) : text));
  return node('figure', { class: 'code' }, [
    node('figcaption', {}, [
      node('span', { class: 'language' }, [language || 'text']),
      node('button', { type: 'button', class: 'copy', 'data-action': 'copy-code' }, ['Copy']),
    ]),
    node('pre', { tabindex: '0' }, [node('code', {}, children)]),
  ]);
}

function heading(lines, at, open) {
  const found = HEADING.exec(lines[at]);
  if (!found) return null;
  // The page itself has the first two levels.
  const tag = `h${Math.min(6, found[1].length + 2)}`;
  const text = found[2].trim();
  let end = text.length;
  while (text[end - 1] === '#') end -= 1;
  const bare = text.slice(0, end);
  const title = bare === '' || /[ \t]$/.test(bare) ? bare.trim() : text;
  return { node: node(tag, { class: `level-${found[1].length}` }, parseInline(title, open && at === lines.length - 1)), next: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { node: node('hr'), next: at + 1 } : null;
}

function quote(lines, at, depth, open) {
  if (!QUOTE.test(lines[at])) return null;
  const inside = [];
  let next = at;
  for (; next < lines.length; next += 1) {
    const line = lines[next];
    if (QUOTE.test(line)) inside.push(line.replace(QUOTE, ''));
    else if (line.trim() !== '' && inside.at(-1).trim() !== '' && !startsBlock(line)) inside.push(line);
    else break;
  }
  const children = parseBlocks(inside, depth + 1, open && next === lines.length).map((block) => block.node);
  return { node: node('blockquote', {}, children), next };
}

function itemAt(line) {
  if (RULE.test(line)) return null;
  const found = ITEM.exec(line);
  if (!found) return null;
  const [, indent, marker, space, text] = found;
  const gap = space.length === 0 || space.length > 4 ? 1 : space.length;
  return { indent: indent.length, marker, ordered: /\d/.test(marker), content: indent.length + marker.length + gap, text };
}

function list(lines, at, depth, open) {
  const first = itemAt(lines[at]);
  if (!first) return null;
  const items = [];
  let next = at;
  while (next < lines.length) {
    const item = itemAt(lines[next]);
    if (!item || item.ordered !== first.ordered || item.indent >= first.content) break;
    const inside = [item.text];
    next += 1;
    next = itemLines(lines, next, item, inside);
    items.push({ inside, last: next >= lines.length });
    let ahead = next;
    while (ahead < lines.length && lines[ahead].trim() === '') ahead += 1;
    if (ahead < lines.length && itemAt(lines[ahead])) next = ahead;
  }
  const attrs = first.ordered && parseInt(first.marker, 10) !== 1 ? { start: String(parseInt(first.marker, 10)) } : {};
  const children = items.map(({ inside, last }) => listItem(inside, depth, open && last));
  return { node: node(first.ordered ? 'ol' : 'ul', attrs, children), next };
}

/** Collects the lines that belong to an item, and says where the next block begins. */
function itemLines(lines, from, item, inside) {
  // Models often indent a nested list by two under "1.", which strictly would not nest.
  const nested = Math.min(item.content, item.indent + 2);
  let next = from;
  while (next < lines.length) {
    const line = lines[next];
    if (line.trim() === '') {
      let ahead = next;
      while (ahead < lines.length && lines[ahead].trim() === '') ahead += 1;
      if (ahead === lines.length || indentOf(lines[ahead]) < nested) return next;
      for (; next < ahead; next += 1) inside.push('');
      continue;
    }
    const indent = indentOf(line);
    if (indent >= nested) inside.push(line.slice(Math.min(indent, item.content)));
    else if (inside.at(-1).trim() !== '' && !startsBlock(line) && !itemAt(line)) inside.push(line);
    else return next;
    next += 1;
  }
  return next;
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function listItem(inside, depth, open) {
  const task = /^\[([ xX])\]\s+/.exec(inside[0]);
  const lines = task ? [inside[0].slice(task[0].length), ...inside.slice(1)] : inside;
  const blocks = parseBlocks(lines, depth + 1, open).map((block) => block.node);
  // A single paragraph needs no box of its own. Blank lines between items are ignored: they come and go while a list streams.
  const lone = blocks.filter((block) => block.tag === 'p').length === 1;
  const children = blocks.flatMap((block) => (lone && block.tag === 'p' ? block.children : [block]));
  if (!task) return node('li', {}, children);
  const done = task[1] !== ' ';
  return node('li', { class: 'task' }, [node('span', { class: 'box', role: 'img', 'aria-label': done ? 'done' : 'to do' }, [done ? '☑' : '☐']), ' ', ...children]);
}

function cells(line) {
  const out = [];
  let cell = '';
  let code = false;
  const text = line.trim().replace(/^\|/, '');
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === '\\' && text[at + 1] === '|') {
      cell += '|';
      at += 1;
    } else if (text[at] === '|' && !code) {
      out.push(cell.trim());
      cell = '';
    } else {
      if (text[at] === '`') code = !code && text.indexOf('`', at + 1) > 0;
      cell += text[at];
    }
  }
  if (cell.trim() !== '' || out.length === 0) out.push(cell.trim());
  return out;
}

function tableAt(lines, at) {
  if (!lines[at].includes('|') || at + 1 >= lines.length) return false;
  const below = lines[at + 1];
  return below.includes('-') && DELIMITER.test(below) && (below.includes('|') || below.includes(':')) && cells(below).length === cells(lines[at]).length;
}

function table(lines, at, open) {
  if (!tableAt(lines, at)) return null;
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => {
    const left = cell.startsWith(':');
    const right = cell.endsWith(':');
    return right ? (left ? 'center' : 'right') : '';
  });
  const row = (texts, tag, unfinished) =>
    node('tr', {}, head.map((_, column) => {
      const attrs = tag === 'th' ? { scope: 'col' } : {};
      if (sides[column]) attrs.class = sides[column];
      return node(tag, attrs, parseInline(texts[column] ?? '', unfinished));
    }));
  const rows = [];
  let next = at + 2;
  for (; next < lines.length; next += 1) {
    if (lines[next].trim() === '' || (!lines[next].includes('|') && startsBlock(lines[next]))) break;
    rows.push(row(cells(lines[next]), 'td', open && next === lines.length - 1));
  }
  const body = rows.length ? [node('tbody', {}, rows)] : [];
  return { node: node('div', { class: 'table', tabindex: '0' }, [node('table', {}, [node('thead', {}, [row(head, 'th', false)]), ...body])]), next };
}

/** Whether a line ends a paragraph above it. */
function startsBlock(line) {
  if (HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || fenceAt(line)) return true;
  const item = itemAt(line);
  return item !== null && item.text.trim() !== '' && (!item.ordered || parseInt(item.marker, 10) === 1);
}

function paragraph(lines, at, depth, open) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() !== '' && !startsBlock(lines[next]) && !tableAt(lines, next)) next += 1;
  const text = lines.slice(at, next).map((line) => line.trimStart()).join('\n').trimEnd();
  return { node: node('p', {}, parseInline(text, open && next === lines.length, depth)), next };
}
