// Builds the page: joins the modules of webui/src into one file and copies the rest to crates/server/page.
//
//   node webui/build.mjs           writes
//   node webui/build.mjs --check   fails when the committed files are not what the source gives
//
// No dependencies. Comments and most spaces stay in the source; else what is served is what was written. All modules share one scope afterwards, so the build
// refuses a name that two of them declare, and any form of import or export but the two plain ones.

import { readFileSync, readdirSync, writeFileSync, mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = dirname(fileURLToPath(import.meta.url));
const source = join(root, 'src');
const target = join(root, '..', 'crates', 'server', 'page');
const SIZE_MAX = 160_000;

const IMPORT = /^import \{([^}]*)\} from '\.\/([\w-]+\.js)';\n/gm;

function load(name, order, seen, path = []) {
  if (path.includes(name)) throw new Error(`modules import each other in a circle: ${[...path, name].join(' → ')}`);
  if (seen.has(name)) return;
  const text = readFileSync(join(source, name), 'utf8');
  const module = { name, text, exports: new Set([...text.matchAll(/^export (?:async )?(?:class|function\*?|const) (\w+)/gm)].map((found) => found[1])) };
  seen.set(name, module);
  for (const [, names, from] of text.matchAll(IMPORT)) {
    load(from, order, seen, [...path, name]);
    for (const wanted of names.split(',').map((word) => word.trim()).filter(Boolean)) {
      if (!seen.get(from).exports.has(wanted)) throw new Error(`${name} imports ${wanted}, which ${from} does not export`);
      const uses = text.match(new RegExp(`\\b${wanted}\\b`, 'g')).length;
      if (uses < 2) throw new Error(`${name} imports ${wanted} and does not use it`);
    }
  }
  order.push(module);
}

/** Leaves out lines that are comments, blank lines and indentation. Template literals of the source do not span lines of text. */
function slim(text) {
  const lines = text.replace(/^[ \t]*\/\*\*[\s\S]*?\*\/\n/gm, '').replace(/^[ \t]*\/\/.*\n/gm, '').replace(/^[ \t]+/gm, '').replace(/\n{2,}/g, '\n').trim().split('\n');
  return lines.map(tighten).join('\n');
}

/** Leaves out spaces around punctuation, but in strings, and not in lines that may hold a regular expression or a template. */
function tighten(line) {
  if (/[`/]/.test(line)) return line;
  return line.split(/('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")/).map((part, index) => (index % 2 ? part : part.replace(/ ?([={}(),:;?<>&|]) ?/g, '$1'))).join('');
}

function slimStyle(text) {
  return text.replace(/\/\*[\s\S]*?\*\/\n?/g, '').replace(/^ +/gm, '').replace(/ ?([{;]) ?/g, '$1').replace(/: /g, ':').replace(/;}/g, '}').replace(/\n{2,}/g, '\n').trimStart();
}

function bundle() {
  const order = [];
  const seen = new Map();
  load('main.js', order, seen);
  for (const name of readdirSync(source)) if (name.endsWith('.js') && !seen.has(name)) throw new Error(`${name} is used by nothing`);
  const declared = new Map();
  const parts = order.map(({ name, text }) => {
    const body = text.replace(IMPORT, '').replace(/^export (?=async |class |function|const )/gm, '');
    if (/^(?:import|export)\b/m.test(body)) throw new Error(`${name} has a form of import or export that this build does not know`);
    for (const [, word] of body.matchAll(/^(?:async )?(?:class|function\*?|const|let) (\w+)/gm)) {
      if (declared.has(word)) throw new Error(`${name} and ${declared.get(word)} both declare ${word}`);
      declared.set(word, name);
    }
    return `// ---- ${name}\n${slim(body)}\n`;
  });
  return `// Built from webui/src by webui/build.mjs: change it there.\n\n${parts.join('\n')}`;
}

const files = { 'app.js': bundle() };
for (const name of ['index.html', 'style.css', 'icon.svg']) files[name] = readFileSync(join(source, name), 'utf8');
files['style.css'] = slimStyle(files['style.css']);
files['index.html'] = files['index.html'].replace(/^ +/gm, '');
const size = Object.values(files).reduce((sum, text) => sum + Buffer.byteLength(text), 0);
if (size > SIZE_MAX) throw new Error(`the page has ${size} bytes, more than ${SIZE_MAX}`);

if (process.argv.includes('--check')) {
  const stale = Object.entries(files).filter(([name, text]) => {
    try {
      return readFileSync(join(target, name), 'utf8') !== text;
    } catch {
      return true;
    }
  });
  if (stale.length) {
    console.error(`error: not current: ${stale.map(([name]) => `crates/server/page/${name}`).join(', ')}\nhint: node webui/build.mjs`);
    process.exit(1);
  }
  console.log(`page is current, ${size} bytes`);
} else {
  mkdirSync(target, { recursive: true });
  for (const [name, text] of Object.entries(files)) writeFileSync(join(target, name), text);
  console.log(`page written, ${size} bytes`);
}
