// Shared by the checks in a browser: the browser, the servers, and common steps.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const chromiumPath = process.env.MILLSTREAM_TEST_CHROMIUM;
if (!chromiumPath) {
  console.error('error: MILLSTREAM_TEST_CHROMIUM is not set');
  process.exit(2);
}
const { chromium } = createRequire(join(process.env.MILLSTREAM_TEST_PLAYWRIGHT ?? process.cwd(), 'from.js'))('playwright-core');
const pictures = process.env.MILLSTREAM_TEST_SCREENSHOTS;
if (pictures) mkdirSync(pictures, { recursive: true });

const mock = spawn(process.execPath, [join(here, 'server.mjs'), '--port', '0', '--speed', '120'], { stdio: ['ignore', 'pipe', 'inherit'] });
process.on('exit', () => mock.kill());
export const mockUrl = await new Promise((resolve, reject) => {
  mock.stdout.once('data', (line) => resolve(JSON.parse(line).url));
  mock.once('exit', () => reject(new Error('the mock server ended')));
});
export const realUrl = process.env.MILLSTREAM_TEST_URL ?? mockUrl;
export const onMock = realUrl === mockUrl;
export const browser = await chromium.launch({ executablePath: chromiumPath, args: ['--no-sandbox', '--disable-dev-shm-usage', '--disable-gpu'] });

export const STORY = 'Tell me a story about a fox and a lantern';
const NEW_VERSION = '.message.assistant:last-of-type .figures';

/** Opens the page in a browser context of its own, or in another tab of the context of `beside`, and records errors and foreign requests. */
export async function visit(url, { width = 1440, height = 900, scheme = 'light', expectErrors = false, beside = null, ...more } = {}) {
  const context = beside?.context ?? await browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true, ...more });
  // Generous: on a busy machine a browser may be starved for a long time.
  context.setDefaultTimeout(90_000);
  const page = await context.newPage();
  const troubles = [];
  const origin = new URL(url).origin;
  page.on('console', (message) => {
    if (message.type() === 'error' && !(expectErrors && /Failed to load resource/.test(message.text()))) troubles.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => troubles.push(`error: ${error.stack ?? error}`));
  page.on('request', (request) => {
    const address = new URL(request.url());
    if (!['data:', 'blob:'].includes(address.protocol) && address.origin !== origin) troubles.push(`left the origin: ${request.url()}`);
  });
  await page.addInitScript(() => {
    document.addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  });
  await page.goto(url);
  await page.waitForFunction(() => document.documentElement.dataset.ready === 'true');
  return { page, context, troubles, async done() {
    assert.deepEqual(troubles, []);
    await context.close();
  } };
}

/** Waits until the server has answered and the conversations are loaded. */
export const ready = (page) =>
  page.waitForFunction(() => document.getElementById('model').textContent !== '' && document.documentElement.dataset.ready);
export const count = (page, selector) => page.locator(selector).count();
const answers = (page) => page.locator('.message.assistant');

export async function ask(page, text) {
  await ready(page);
  await page.fill('#input', text);
  await page.keyboard.press('Enter');
}

/** Waits until no answer is being generated. */
export async function settled(page) {
  await page.waitForSelector('.message.assistant');
  await page.waitForSelector('#send:not([hidden])');
  await page.waitForSelector(NEW_VERSION);
}

export const lastAnswer = (page) => answers(page).last().locator('.markdown:not(.thoughts)').innerText();

export async function settings(page, values) {
  await page.click('#settings-open');
  for (const [id, value] of Object.entries(values)) {
    const field = page.locator(`#set-${id}`);
    if (id === 'schema' || id === 'tools') await page.locator('.advanced').evaluate((element) => element.setAttribute('open', ''));
    if (id === 'thinking') await field.selectOption(value);
    else await field.fill(value);
  }
  await page.click('#settings button[type="submit"]');
  await page.waitForFunction(() => !document.getElementById('settings').open);
}

export const setMock = (values) => fetch(new URL('mock', mockUrl), { method: 'POST', body: JSON.stringify(values) }).then((response) => response.json());

export async function picture(page, name) {
  if (pictures) await page.screenshot({ path: join(pictures, `${name}.png`) });
}

/** Slows the network down, so that a small model's answer does not arrive within one frame. The panel is closed, because its stream would use the network too. */
export async function slowDown({ page, context }) {
  await ready(page);
  await page.click('#panel-close');
  const session = await context.newCDPSession(page);
  await session.send('Network.enable');
  await session.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: 40_000, uploadThroughput: -1 });
}

/** Makes every write to the browser's storage fail. */
export const fillStorage = (page) => page.addInitScript(() => {
  IDBObjectStore.prototype.put = () => {
    throw new DOMException('full', 'QuotaExceededError');
  };
});

export const noOverflow = (page) => page.evaluate(() => document.documentElement.scrollWidth <= innerWidth);
