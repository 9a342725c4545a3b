// Imports between the modules of the page. A browser would find these faults only when it loads them.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { test } from 'node:test';

const folder = new URL('../', import.meta.url);
const modules = new Map(readdirSync(folder).filter((name) => name.endsWith('.js')).map((name) => [name, read(name)]));

function read(name) {
  const text = readFileSync(new URL(name, folder), 'utf8');
  const imports = [...text.matchAll(/^import \{([^}]*)\} from '\.\/([\w-]+\.js)';$/gm)].map(([, names, from]) => ({ names: names.split(',').map((word) => word.trim()), from }));
  const exports = new Set([...text.matchAll(/^export (?:async )?(?:class|function\*?|const) (\w+)/gm)].map(([, word]) => word));
  return { text, imports, exports };
}

test('what is imported is exported, and used', () => {
  for (const [name, { text, imports }] of modules) {
    for (const { names, from } of imports) {
      for (const word of names) {
        assert.ok(modules.get(from)?.exports.has(word), `${name} imports ${word}, which ${from} does not export`);
        assert.ok(text.match(new RegExp(`\\b${word}\\b`, 'g')).length > 1, `${name} imports ${word} and does not use it`);
      }
    }
  }
});

test('no modules import each other in a circle', () => {
  const visit = (name, path) => {
    assert.ok(!path.includes(name), [...path, name].join(' → '));
    for (const { from } of modules.get(name).imports) visit(from, [...path, name]);
  };
  visit('main.js', []);
});
