// Elements from plain data: a helper for the page's own elements, and the renderer of plain nodes.
//
// Text only ever becomes text nodes: nothing here, or anywhere in the page, parses HTML. The one invariant of
// `patchNodes`: an element that stays the same is not touched, so selection and scrolling survive streaming.

import { safeUrl } from './inline.js';

const SVG = 'http://www.w3.org/2000/svg';
const ATTRIBUTES = new Set(['class', 'href', 'rel', 'target', 'start', 'scope', 'type', 'role', 'tabindex', 'dir', 'data-action', 'aria-label']);

/** Makes an element: attributes by name, listeners as `on…` functions, false and null left out. */
export function make(tag, attrs = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attrs)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An element of the page's shell; its absence is a bug. */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

const ICONS = {
  plus: 'M12 5v14M5 12h14',
  menu: 'M4 7h16M4 12h16M4 17h16',
  close: 'M6 6l12 12M18 6L6 18',
  send: 'M12 19V5M6 11l6-6 6 6',
  stop: 'M8 8h8v8H8z',
  copy: 'M9 9h10v10H9zM5 15V5h10',
  check: 'M5 12.5l4.5 4.5L19 7.5',
  edit: 'M4 20l1-4L16.5 4.5l3 3L8 19zM14 7l3 3',
  again: 'M19 12a7 7 0 1 1-2.2-5.1M19 4v4h-4',
  trash: 'M5 7h14M10 7V5h4v2M7 7l1 12h8l1-12M10.5 10.5v5M13.5 10.5v5',
  download: 'M12 4v11M7 11l5 5 5-5M5 20h14',
  upload: 'M12 16V5M7 9l5-5 5 5M5 20h14',
  left: 'M14 6l-6 6 6 6',
  right: 'M10 6l6 6-6 6',
  down: 'M12 5v14M6 13l6 6 6-6',
  sliders: 'M4 7h9M19 7h1M4 17h3M13 17h7M16 4.5v5M10 14.5v5',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M12 2.5v2.5M12 19v2.5M2.5 12H5M19 12h2.5M5.3 5.3L7 7M17 17l1.7 1.7M18.7 5.3L17 7M7 17l-1.7 1.7',
  moon: 'M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z',
  half: 'M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16',
  keyboard: 'M3.5 7h17v10h-17zM7 10.5h.01M10.3 10.5h.01M13.7 10.5h.01M17 10.5h.01M8 14h8',
  pulse: 'M3 12h4l3-7 4 14 3-7h4',
  expand: 'M9 4H4v5M15 4h5v5M9 20H4v-5M15 20h5v-5',
  search: 'M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12M15.5 15.5L20 20',
  tool: 'M14.5 6.5a4 4 0 0 0-5 5L4 17l3 3 5.5-5.5a4 4 0 0 0 5-5L15 12l-3-3z',
};

/** A line icon, hidden from assistive technology: the control around it carries the name. */
export function icon(name) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 24 24');
  svg.setAttribute('aria-hidden', 'true');
  svg.setAttribute('class', 'icon');
  const path = document.createElementNS(SVG, 'path');
  path.setAttribute('d', ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button with an icon and a name. */
export function iconButton(name, label, onclick, attrs = {}) {
  return make('button', { type: 'button', class: 'icon-button', 'aria-label': label, title: label, onclick, ...attrs }, icon(name));
}

/** Whether a key event belongs to an input method that is still composing. Safari shows it by the key code only. */
export function composing(event) {
  return event.isComposing || event.keyCode === 229;
}

/** Makes the DOM of a plain node. */
export function renderNode(item) {
  if (typeof item === 'string') return document.createTextNode(item);
  const element = document.createElement(item.tag);
  for (const [name, value] of Object.entries(item.attrs)) setAttribute(element, name, value);
  element.append(...item.children.map(renderNode));
  return element;
}

/** Makes `parent`, which shows the nodes `before`, show `after`; children before `from` are known to be the same. */
export function patchNodes(parent, before, after, from = 0) {
  const shared = Math.min(before.length, after.length);
  for (let index = from; index < shared; index += 1) patchNode(parent.childNodes[index], before[index], after[index]);
  for (let index = before.length - 1; index >= shared; index -= 1) parent.childNodes[index].remove();
  if (after.length > shared) parent.append(...after.slice(Math.max(shared, from)).map(renderNode));
}

function patchNode(dom, before, after) {
  if (before === after) return;
  if (typeof before === 'string' && typeof after === 'string') {
    if (after.startsWith(before)) dom.appendData(after.slice(before.length));
    else dom.data = after;
    return;
  }
  if (typeof before === 'string' || typeof after === 'string' || before.tag !== after.tag) {
    dom.replaceWith(renderNode(after));
    return;
  }
  for (const name of Object.keys(before.attrs)) if (!(name in after.attrs)) dom.removeAttribute(name);
  for (const [name, value] of Object.entries(after.attrs)) if (before.attrs[name] !== value) setAttribute(dom, name, value);
  patchNodes(dom, before.children, after.children);
}

// The parser makes only these; the check here is a second line of defence.
function setAttribute(element, name, value) {
  if (!ATTRIBUTES.has(name)) return;
  if (name === 'href' && !safeUrl(value)) return;
  element.setAttribute(name, value);
}

/** The colour that a custom property of the style sheet has now, as `rgb(…)`. */
export function themeColour(property) {
  const probe = make('i', { hidden: true });
  probe.style.color = `var(${property})`;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Copies a text; returns whether it worked. Without a secure context only `execCommand` is there. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const focused = document.activeElement;
    const area = make('textarea', { class: 'offscreen', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    focused?.focus();
    return copied;
  }
}

/** Downloads a text as a JSON file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  make('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
