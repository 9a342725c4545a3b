// Notices outside the chat: toasts, the banner, and announcements for screen readers.

import { byId, iconButton, make } from './dom.js';

const TOAST_MS = 8_000;
const ANNOUNCE_EVERY_MS = 1_500;

/** Shows a short notice, with an action if given; it closes after some seconds, unless the pointer or the focus is on it. A lasting notice, or one without an action, is not shown twice at a time. */
export function toast(text, { action = null, onaction = null, lasting = false } = {}) {
  const holder = byId('toasts');
  if ((lasting || !action) && [...holder.children].some((other) => other.firstChild.textContent === text)) return;
  const element = make('div', { class: 'toast' }, make('span', {}, text));
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    element.remove();
  };
  if (action) {
    element.append(make('button', { type: 'button', class: 'link', onclick: () => {
      close();
      onaction();
    } }, action));
  }
  element.append(iconButton('close', 'Dismiss', close));
  const start = () => {
    clearTimeout(timer);
    if (!lasting) timer = setTimeout(close, TOAST_MS);
  };
  for (const name of ['pointerenter', 'focusin']) element.addEventListener(name, () => clearTimeout(timer));
  for (const name of ['pointerleave', 'focusout']) element.addEventListener(name, start);
  while (holder.childElementCount >= 4) holder.firstElementChild.remove();
  holder.append(element);
  start();
}

/** Shows or hides the line above the chat. */
export function banner(text, { action = null, onaction = null, kind = 'warning' } = {}) {
  const element = byId('banner');
  element.hidden = !text;
  element.dataset.kind = kind;
  // Setting the same text again would make screen readers repeat it.
  if (element.firstElementChild?.textContent === text) return;
  element.replaceChildren(make('span', {}, text ?? ''), ...(action ? [make('button', { type: 'button', class: 'link', onclick: onaction }, action)] : []));
}

const waiting = [];
let speaking = 0;

/** Announces a text to screen readers, politely: texts within a short time are joined. */
export function announce(text) {
  if (text.trim()) waiting.push(text.trim());
  if (speaking || waiting.length === 0) return;
  byId('announcer').textContent = waiting.splice(0).join(' ').slice(0, 2_000);
  speaking = setTimeout(() => {
    speaking = 0;
    announce('');
  }, ANNOUNCE_EVERY_MS);
}
