// Markdown: the nodes of each construct, independence of how the text is cut, and safety of hostile input.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { highlight } from '../highlight.js';
import { parseInline, plainText, safeUrl } from '../inline.js';
import { MarkdownStream, parseMarkdown } from '../markdown.js';

/** A tree as short text: `p(one em(two))`. */
function sketch(nodes) {
  return nodes.map((item) => {
    if (typeof item === 'string') return item.replace(/\n/g, '⏎');
    if (item.attrs.class === 'code') return `code[${item.children[0].children[0].children[0]}](${plainText(item.children[1].children).replace(/\n/g, '⏎')})`;
    if (item.tag === 'br') return '↵';
    const mark = item.tag === 'a' ? `[${item.attrs.href}]` : item.attrs.start ? `[${item.attrs.start}]` : item.attrs.class && !item.attrs.class.startsWith('level') ? `.${item.attrs.class}` : '';
    return `${item.tag}${mark}(${sketch(item.children)})`;
  }).join('');
}

function check(text, expect) {
  assert.equal(sketch(parseMarkdown(text)), expect, JSON.stringify(text));
}

function checkInline(text, expect, open = false) {
  assert.equal(sketch(parseInline(text, open)), expect, JSON.stringify(text));
}

test('paragraphs, headings and rules', () => {
  check('one\ntwo\n\nthree', 'p(one↵two)p(three)');
  check('# A\n## B ##\n####### no', 'h3(A)h4(B)p(####### no)');
  check('#no\n#', 'p(#no)h3()');
  check('a\n---\nb\n***', 'p(a)hr()p(b)hr()');
  check('## C# and F#', 'h4(C# and F#)');
  check('', '');
});

test('the outermost blocks find their direction, and code has one', () => {
  const blocks = parseMarkdown('# a\n\nb\n\n- c\n\n> d\n\n|e|\n|:-|\n\n```\nf\n```');
  assert.deepEqual(blocks.map(({ tag, attrs }) => [tag, attrs.dir]), [['h3', 'auto'], ['p', 'auto'], ['ul', 'auto'], ['blockquote', 'auto'], ['div', 'auto'], ['figure', undefined]]);
  // A direction of its own would hide the text inside from the block around it.
  assert.deepEqual(blocks[3].children.map(({ attrs }) => attrs), [{}]);
});

test('fenced code', () => {
  check('```rust\nfn a() {}\n```\nafter', 'code[rust](fn a() {})p(after)');
  check('```\nopen', 'code[text](open)');
  check('````md\n```\nx\n```\n````', 'code[md](```⏎x⏎```)');
  check('~~~py extra\n  x\n~~~', 'code[py](  x)');
  check('a\n```\nb\n```', 'p(a)code[text](b)');
  check('```js', 'code[js]()');
  check('``` not `code', 'p(``` not `code)');
  check('```\n\n\na\n```', 'code[text](⏎⏎a)');
  check('```\n\ttab\n```', 'code[text](\ttab)');
});

test('lists', () => {
  check('- a\n- b', 'ul(li(a)li(b))');
  check('- a\n\n- b\n\nc', 'ul(li(a)li(b))p(c)');
  check('1. a\n2. b\n   - c\n   - d\n3. e', 'ol(li(a)li(bul(li(c)li(d)))li(e))');
  check('1. a\n  - b', 'ol(li(aul(li(b))))');
  check('3) a\n4) b', 'ol[3](li(a)li(b))');
  check('- a\n\n  second\n- b', 'ul(li(p(a)p(second))li(b))');
  check('* a\n  ```sh\n  ls\n  ```\n* b', 'ul(li(acode[sh](ls))li(b))');
  check('- [x] done\n- [ ] open', 'ul(li.task(span.box(☑) done)li.task(span.box(☐) open))');
  check('text\n- a', 'p(text)ul(li(a))');
  check('in 1999\n2000. no list', 'p(in 1999↵2000. no list)');
  check('- a\nlazy\n- b', 'ul(li(a↵lazy)li(b))');
  check('- a\n1. b', 'ul(li(a))ol(li(b))');
  check('-\n- b', 'ul(li()li(b))');
});

test('quotes', () => {
  check('> a\n> b\n\nc', 'blockquote(p(a↵b))p(c)');
  check('> - a\n>   - b\n> > c', 'blockquote(ul(li(aul(li(b))))blockquote(p(c)))');
  check('> a\nlazy', 'blockquote(p(a↵lazy))');
});

test('tables', () => {
  check('| a | b |\n|---|--:|\n| 1 | 2 |\n| 3 |', 'div.table(table(thead(tr(th(a)th.right(b)))tbody(tr(td(1)td.right(2))tr(td(3)td.right()))))');
  check('a | b\n:-: | -\n`x|y` | \\|', 'div.table(table(thead(tr(th.center(a)th(b)))tbody(tr(td.center(code(x|y))td(|)))))');
  check('intro\n| a |\n|---|', 'p(intro)div.table(table(thead(tr(th(a)))))');
  check('a | b\n--- no', 'p(a | b↵--- no)');
});

test('emphasis', () => {
  checkInline('a **b** *c* ***d*** ~~e~~', 'a strong(b) em(c) em(strong(d)) del(e)');
  checkInline('snake_case_name and 2 * 3 * 4', 'snake_case_name and 2 * 3 * 4');
  checkInline('**a *b* c**', 'strong(a em(b) c)');
  checkInline('*a **b*', '*a *em(b)');
  checkInline('__a__ _b_', 'strong(a) em(b)');
  checkInline('**open', '**open');
  checkInline('**open', 'strong(open)', true);
  checkInline('a `op', 'a code(op)', true);
  checkInline('a ` b', 'a ` b');
  checkInline('`` a ` b ``', 'code(a ` b)');
  checkInline('\\*no\\* \\(x_1\\) $$a_b$$', '*no* span.math(\\(x_1\\)) span.math($$a_b$$)');
  checkInline('a  \nb\\\nc<br>d', 'a↵b↵c↵d');
  checkInline('&lt;b&gt; &#65; &nope; &amp', '<b> A &nope; &amp');
});

test('links', () => {
  checkInline('[a **b**](https://x.org/y_(z) "t")', 'a[https://x.org/y_(z)](a strong(b))');
  checkInline('see https://x.org/a_b. (http://y.org)', 'see a[https://x.org/a_b](https://x.org/a_b). (a[http://y.org/](http://y.org))');
  checkInline('<https://x.org> <mailto:a@b.c>', 'a[https://x.org/](https://x.org) a[mailto:a@b.c](mailto:a@b.c)');
  checkInline('![alt](https://x.org/i.png)', 'a[https://x.org/i.png](alt)');
  checkInline('[a](javascript:alert(1)) [b](data:text/html,x) [c](/etc) [d](vbscript:x)', 'a b c d');
  checkInline('[a [b](https://x.org) c](https://y.org)', '[a a[https://x.org/](b) c](a[https://y.org/](https://y.org))');
  checkInline('[text](https://unfini', 'text', true);
  checkInline('[x] [y', '[x] [y');
});

test('addresses with other schemes are refused', () => {
  for (const bad of ['javascript:x', ' JavaScript:x', 'java\nscript:x', 'data:text/html,x', 'file:///etc/passwd', 'blob:https://x', '//x.org', 'x', '', `https://x.org/${'a'.repeat(3000)}`]) assert.equal(safeUrl(bad), null, bad);
  for (const good of ['https://x.org', 'HTTP://x.org', 'mailto:a@b.c']) assert.notEqual(safeUrl(good), null, good);
});

test('raw HTML stays text', () => {
  const allowed = new Set(['p', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'div', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'figure', 'figcaption', 'button', 'pre', 'code', 'span', 'hr', 'br', 'a', 'em', 'strong', 'del']);
  const walk = (nodes) => {
    for (const item of nodes) {
      if (typeof item === 'string') continue;
      assert.ok(allowed.has(item.tag), item.tag);
      for (const [name, value] of Object.entries(item.attrs)) {
        assert.ok(!name.startsWith('on') && name !== 'style' && name !== 'src', name);
        if (name === 'href') assert.match(value, /^(https?:|mailto:)/);
      }
      walk(item.children);
    }
  };
  check('<script>x</script>', 'p(<script>x</script>)');
  check('<img src=x onerror=y>', 'p(<img src=x onerror=y>)');
  const random = generator(7);
  for (let round = 0; round < 3000; round += 1) walk(parseMarkdown(gibberish(random, 40)));
});

/** Small and seeded, so that a failure comes again. */
function generator(seed) {
  let state = seed;
  return (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
}

const PIECES = ['a', 'word ', ' ', '  ', '    ', '\n', '\n', '\n\n', '\r\n', '\t', '*', '**', '_', '~~', '`', '```', '```js\n', '~~~', '#', '# ', '- ', '* ', '1. ', '2. ', '> ', '|', '| a | b |\n', '|---|---|\n', '---', ':', '[', ']', '](', '(', ')', 'https://x.org', '!', '\\', '$$', '<', '>', '<br>', '<script>', '&lt;', '[x] ', '\0', 'é', '😀', '"', 'javascript:'];

function gibberish(random, length) {
  let text = '';
  for (let count = random(length) + 1; count > 0; count -= 1) text += PIECES[random(PIECES.length)];
  return text;
}

test('however a text is cut, the blocks are the same', () => {
  const random = generator(20261115);
  for (let round = 0; round < 4000; round += 1) {
    const text = gibberish(random, 60);
    const whole = parseMarkdown(text);
    const stream = new MarkdownStream();
    for (let at = 0; at < text.length;) {
      const next = at + 1 + random(7);
      stream.push(text.slice(at, next));
      stream.blocks(true);
      at = next;
    }
    if (stream.heldReturn) stream.push('');
    assert.deepEqual(stream.blocks(), stream.heldReturn ? parseMarkdown(text.slice(0, -1)) : whole, JSON.stringify(text));
  }
});

test('a settled block is never touched again', () => {
  const random = generator(3);
  for (let round = 0; round < 500; round += 1) {
    const text = gibberish(random, 60);
    const stream = new MarkdownStream();
    const seen = [];
    for (const char of text) {
      stream.push(char);
      seen.forEach((block, index) => assert.equal(stream.settled[index], block));
      for (let index = seen.length; index < stream.settled.length; index += 1) seen.push(stream.settled[index]);
    }
  }
});

test('hostile sizes stay cheap', () => {
  const started = performance.now();
  for (const text of ['*a '.repeat(20_000), '['.repeat(20_000), '> '.repeat(5_000), '`'.repeat(301) + ' ``'.repeat(10_000), '- '.repeat(5_000), '|a'.repeat(20_000) + '\n' + '|-'.repeat(20_000), '#'.repeat(50_000), `#${' '.repeat(50_000)}#x`, '![](('.repeat(5_000), '**_'.repeat(10_000), '$$'.repeat(20_001), '\\('.repeat(3_000), '\\( '.repeat(100_000), '\\[ '.repeat(100_000), `# ${'#'.repeat(100_000)} a`, '<br'.repeat(20_000), 'http://'.repeat(3_000)]) parseMarkdown(text);
  assert.ok(performance.now() - started < 8_000, `${performance.now() - started} ms`);
});

test('colouring only cuts the text', () => {
  const samples = ['let a = "x"; // c\n', 'def f(x):\n    """doc"""\n    return 1.5e3 # c', '{"a": [1, true, "b\\"c"]}', '<a href="x">t</a><!-- c', "fn f<'a>(x: &'a str) -> char { 'x' }", 'SELECT * FROM t WHERE a = \'b\' -- c', '+a\n-b\n@@ c', 'a: 1\nb: "c" # d', '.x { color: red; }', '"open', '/* open', '`a ${b}`'];
  for (const language of ['js', 'python', 'json', 'html', 'rust', 'sql', 'diff', 'yaml', 'css', 'bash', 'go', 'c++', 'ruby', 'unknown', '', 'constructor', '__proto__']) {
    for (const sample of samples) assert.equal(highlight(sample, language).map(([, text]) => text).join(''), sample, language);
  }
  const kinds = (text, language) => highlight(text, language).filter(([kind]) => kind).map(([kind, piece]) => `${kind}:${piece}`).join(' ');
  assert.equal(kinds('const a = f("x", 1); // y', 'js'), 'keyword:const call:f string:"x" number:1 comment:// y');
  assert.equal(kinds("fn f<'a>(x: &'a str)", 'rust'), 'keyword:fn');
  assert.equal(kinds('{"a": "b", "c": null}', 'json'), 'name:"a" string:"b" name:"c" number:null');
});
