// Checks in a browser of two tabs, accidental input, input methods, foreign keyboards and the focus.

import assert from 'node:assert/strict';
import { ask, browser, count, fillStorage, mockUrl, ready, setMock, settings, settled, visit } from './visitor.mjs';

const focused = (page) => page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.tagName);
const bubbles = (page) => page.locator('.bubble').allInnerTexts();
const titles = (page) => page.locator('#list .open').allInnerTexts();
const isOpen = (page, id) => page.evaluate((name) => document.getElementById(name).open, id);

/** Requests a long answer, and waits for its first words. */
async function askLong(page) {
  await ask(page, 'a long story');
  await page.waitForFunction(() => document.querySelector('.streaming .markdown:not(.thoughts)')?.textContent.length > 5);
}

/** Dispatches a key as an input method, or a keyboard of another kind, would. Returns whether the page took it. */
const press = (page, selector, key) => page.locator(selector).evaluate((element, init) => !element.dispatchEvent(new KeyboardEvent('keydown', { bubbles: true, cancelable: true, ...init })), key);

/** The texts of the messages that the browser has stored. */
const kept = (page) => page.evaluate(() => new Promise((resolve) => {
  const opening = indexedDB.open('millstream', 1);
  opening.onsuccess = () => {
    const reading = opening.result.transaction('conversations').objectStore('conversations').getAll();
    reading.onsuccess = () => resolve(reading.result.flatMap((conversation) => conversation.messages.map((message) => message.content)));
  };
}));

export const mishaps = [
  ['a conversation deleted while an answer is generated stays deleted, until it is restored', async () => {
    const visitor = await visit(mockUrl);
    const { page } = visitor;
    await askLong(page);
    // Past the first of the saves that are made while an answer comes.
    await page.waitForTimeout(2_300);
    await page.locator('#list .open').first().focus();
    await page.keyboard.press('Delete');
    await page.waitForSelector('.welcome');
    await page.waitForTimeout(500);
    assert.deepEqual([await titles(page), await kept(page)], [[], []]);
    await page.click('.toast .link');
    await page.waitForSelector('.message.assistant');
    assert.deepEqual(await titles(page), ['a long story']);
    assert.match(await page.locator('.figures').innerText(), /^stopped/);
    await page.reload();
    await page.waitForSelector('.message.assistant');
    await visitor.done();
  }],

  ['a conversation deleted in another tab stays deleted', async () => {
    const first = await visit(mockUrl);
    await askLong(first.page);
    const second = await visit(first.page.url(), { beside: first });
    await second.page.locator('#list .open').first().focus();
    await second.page.keyboard.press('Delete');
    await first.page.waitForSelector('.welcome');
    await first.page.waitForTimeout(2_500);
    assert.deepEqual([await titles(first.page), await kept(first.page)], [[], []]);
    await first.done();
  }],

  ['two tabs in one conversation keep the messages of both', async () => {
    const first = await visit(mockUrl);
    await ask(first.page, 'hello');
    await settled(first.page);
    const second = await visit(first.page.url(), { beside: first });
    await ready(second.page);
    await askLong(first.page);
    await second.page.getByText('This answer is being generated in another tab.').waitFor();
    // An open edit survives what the other tab writes.
    await second.page.locator('[aria-label="Edit and send again"]').first().click();
    await second.page.keyboard.type(' there');
    await second.page.waitForTimeout(2_500);
    assert.equal(await second.page.inputValue('.edit textarea'), 'hello there');
    await second.page.keyboard.press('Escape');
    await ask(second.page, 'from the second tab');
    await second.page.waitForFunction(() => document.querySelectorAll('.message.assistant').length === 3);
    await settled(second.page);
    await first.page.waitForTimeout(2_500);
    await first.page.click('#stop');
    await settled(first.page);
    await second.page.waitForFunction(() => !document.getElementById('messages').innerText.includes('in another tab'));
    for (const { page } of [first, second]) {
      assert.deepEqual(await bubbles(page), ['hello', 'a long story', 'from the second tab']);
      await page.reload();
      await page.waitForSelector('.message.assistant');
      assert.deepEqual(await bubbles(page), ['hello', 'a long story', 'from the second tab']);
    }
    assert.deepEqual(second.troubles, []);
    await first.done();
  }],

  ['two tabs share their settings', async () => {
    const first = await visit(mockUrl);
    const second = await visit(mockUrl, { beside: first });
    await settings(first.page, { system: 'Be brief.' });
    await second.page.click('#theme');
    await first.page.waitForFunction(() => document.documentElement.dataset.theme === 'light');
    await first.page.reload();
    await first.page.click('#settings-open');
    assert.equal(await first.page.inputValue('#set-system'), 'Be brief.');
    assert.deepEqual(second.troubles, []);
    await first.done();
  }],

  ['the API key is requested at the start, and when it is no longer valid', async () => {
    await setMock({ key: 'secret' });
    const visitor = await visit(mockUrl, { expectErrors: true });
    const { page } = visitor;
    await page.waitForSelector('#key[open]');
    for (let times = 0; times < 2; times += 1) await page.keyboard.press('Escape');
    await page.waitForSelector('#key:not([open])', { state: 'attached' });
    await page.fill('#input', 'hello');
    await page.keyboard.press('Enter');
    await page.waitForSelector('#key[open]');
    await page.keyboard.press('Escape');
    await page.click('#banner button');
    await page.fill('#key-input', 'secret');
    await page.keyboard.press('Enter');
    await ready(page);
    assert.equal(await page.locator('#banner').isVisible(), false);
    // The server comes back with another key.
    await setMock({ key: 'other' });
    await page.focus('#input');
    await page.keyboard.press('Enter');
    await page.waitForSelector('#key[open]');
    await page.fill('#key-input', 'other');
    await page.keyboard.press('Enter');
    await ready(page);
    await page.click('.problem button');
    await settled(page);
    assert.equal(await count(page, '.problem:visible'), 0);
    await setMock({ key: '' });
    await visitor.done();
  }],

  ['accidental clicks and keys lose no input', async () => {
    const visitor = await visit(mockUrl);
    const { page } = visitor;
    await page.click('#settings-open');
    await page.fill('#set-system', 'A long prompt');
    const box = await page.locator('#settings').boundingBox();
    const field = await page.locator('#set-system').boundingBox();
    await page.mouse.click(box.x + 8, field.y + 20);
    await page.mouse.click(10, 10);
    await page.mouse.move(field.x + 60, field.y + 20);
    await page.mouse.down();
    await page.mouse.move(10, field.y + 20);
    await page.mouse.up();
    assert.equal(await page.inputValue('#set-system'), 'A long prompt');
    assert.equal(await isOpen(page, 'settings'), true);
    await page.fill('#set-temperature', '9');
    await page.keyboard.press('Enter');
    assert.equal(await page.getAttribute('#set-temperature', 'aria-invalid'), 'true');
    await page.keyboard.press('Escape');
    await page.click('#shortcuts-open');
    const list = await page.locator('#shortcuts').boundingBox();
    await page.mouse.click(list.x + 5, list.y + list.height / 2);
    assert.equal(await isOpen(page, 'shortcuts'), true);
    await page.mouse.click(list.x - 20, list.y + list.height / 2);
    assert.equal(await isOpen(page, 'shortcuts'), false);
    await askLong(page);
    await page.hover('.message.user');
    await page.click('[aria-label="Edit and send again"]');
    await page.keyboard.type(', changed');
    await page.keyboard.press('Enter');
    await page.getByText('Stop the answer first.').waitFor();
    assert.equal(await page.inputValue('.edit textarea'), 'a long story, changed');
    await page.keyboard.press('Alt+r');
    assert.equal(await count(page, '.toast'), 1);
    await visitor.done();
  }],

  ['typing goes to the field that was chosen', async () => {
    const visitor = await visit(mockUrl);
    const { page } = visitor;
    for (const text of ['first', 'second', 'third']) {
      await page.click('#new-chat');
      await ask(page, text);
      await settled(page);
    }
    await page.locator('.skip').focus();
    await page.keyboard.press('Enter');
    assert.equal(await focused(page), 'input');
    assert.deepEqual(await bubbles(page), ['third']);
    assert.match(page.url(), /#c=/);
    await page.locator('#list .open').first().focus();
    await page.keyboard.press('F2');
    await page.keyboard.type('Renamed');
    await page.click('#input');
    await page.keyboard.type('next');
    assert.deepEqual([await page.inputValue('#input'), (await titles(page))[0]], ['next', 'Renamed']);
    await page.fill('#input', '');
    await page.locator('#scroll').focus();
    await page.keyboard.press('j');
    await page.keyboard.press('j');
    assert.deepEqual([await bubbles(page), await page.inputValue('#input')], [['first'], '']);
    await visitor.done();
  }],

  ['input methods and other keyboards keep their keys', async () => {
    const visitor = await visit(mockUrl);
    const { page } = visitor;
    await ask(page, 'hello');
    await settled(page);
    const composed = [{ key: 'Enter', isComposing: true }, { key: 'Enter', keyCode: 229 }, { key: 'Escape', isComposing: true }];
    await page.fill('#input', 'half a w');
    for (const key of composed) assert.equal(await press(page, '#input', key), false);
    assert.deepEqual(await bubbles(page), ['hello']);
    await page.fill('#input', '');
    await page.keyboard.press('ArrowUp');
    for (const key of composed) assert.equal(await press(page, '.edit textarea', key), false);
    await page.keyboard.press('Escape');
    await page.locator('#list .open').first().focus();
    await page.keyboard.press('F2');
    for (const key of composed) assert.equal(await press(page, '.rename', key), false);
    await page.keyboard.press('Escape');
    await page.fill('#search', 'h');
    for (const key of composed) assert.equal(await press(page, '#search', key), false);
    await page.fill('#search', '');
    for (const key of ['ś', 'Dead']) assert.equal(await press(page, '#input', { key, code: 'KeyS', altKey: true }), false);
    assert.equal(await isOpen(page, 'settings'), false);
    assert.equal(await press(page, '#input', { key: 's', code: 'KeyS', altKey: true }), true);
    assert.equal(await isOpen(page, 'settings'), true);
    await visitor.done();
  }],

  ['right-to-left text has its direction', async () => {
    const visitor = await visit(mockUrl);
    const { page } = visitor;
    await ask(page, 'שלום rtl');
    await settled(page);
    const direction = (selector) => page.locator(selector).first().evaluate((element) => getComputedStyle(element).direction);
    for (const selector of ['.bubble', '#title', '#list .open span', '.markdown > p', '.markdown > ul', '.markdown li', '.markdown > blockquote']) assert.equal(await direction(selector), 'rtl', selector);
    for (const selector of ['.code', '#input', '#main']) assert.equal(await direction(selector), 'ltr', selector);
    await visitor.done();
  }],

  ['the focus is never lost', async () => {
    const visitor = await visit(mockUrl, { width: 1000, height: 500 });
    const { page } = visitor;
    await ask(page, 'a tour');
    await settled(page);
    await page.keyboard.press('Alt+p');
    assert.equal(await focused(page), 'panel-close');
    // What the panel covers cannot be reached.
    for (let step = 0; step < 12; step += 1) {
      await page.keyboard.press('Tab');
      assert.equal(await page.evaluate(() => document.getElementById('app').contains(document.activeElement) && !document.getElementById('panel').contains(document.activeElement)), false);
    }
    await page.keyboard.press('Alt+p');
    assert.equal(await focused(page), 'panel-toggle');
    await page.keyboard.press('Alt+p');
    await page.keyboard.press('Alt+n');
    assert.equal(await focused(page), 'input');
    assert.equal(await page.locator('#scrim').isVisible(), false);
    await page.goBack();
    await page.locator('#scroll').evaluate((element) => element.scrollTo(0, 500));
    await page.locator('#scroll').evaluate((element) => element.scrollTo(0, 0));
    await page.click('#jump');
    assert.equal(await focused(page), 'scroll');
    await page.evaluate(() => Object.defineProperty(navigator, 'clipboard', { value: undefined }));
    await page.locator('.copy').focus();
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('.copy').textContent === 'Copied');
    assert.equal(await focused(page), 'copy');
    await page.setViewportSize({ width: 600, height: 500 });
    await page.click('#sidebar-open');
    await page.keyboard.press('Enter');
    assert.equal(await focused(page), 'sidebar-open');
    await page.click('#sidebar-open');
    await page.click('#list .open');
    assert.equal(await focused(page), 'sidebar-open');
    await visitor.done();
  }],

  ['the browser history does not stop at a deleted conversation', async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto('data:text/html,before');
    await page.goto(`${mockUrl}#c=gone`);
    await ready(page);
    assert.equal(await page.evaluate(() => location.hash), '');
    await page.goBack();
    assert.match(page.url(), /^data:/);
    await context.close();
  }],

  ['full storage is reported once while an answer is generated', async () => {
    const context = await browser.newContext();
    const page = await context.newPage();
    await fillStorage(page);
    await page.goto(mockUrl);
    await askLong(page);
    await page.focus('.toast .link');
    await page.waitForTimeout(2_500);
    assert.equal(await focused(page), 'link');
    assert.equal(await count(page, '.toast'), 1);
    await context.close();
  }],
];
