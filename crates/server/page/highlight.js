// Light colouring of code: a text becomes [kind, text] pairs.
//
// Not a parser: comments, strings, numbers, keywords and a few names per language family, found by one
// regular expression each. The one invariant: the pieces joined are the text.

const C_LIKE = { line: '\\/\\/', block: ['\\/\\*', '\\*\\/'], strings: `"'` };
const LANGUAGES = {
  javascript: {
    ...C_LIKE, template: true,
    words: 'async await break case catch class const continue debugger default delete do else export extends finally for from function if import in instanceof let new of return static super switch this throw try typeof var void while with yield interface type enum implements private public protected readonly as satisfies declare namespace abstract keyof',
    values: 'true false null undefined NaN Infinity',
  },
  python: {
    line: '#', strings: `"'`, triple: true,
    words: 'and as assert async await break class continue def del elif else except finally for from global if import in is lambda match case nonlocal not or pass raise return try while with yield',
    values: 'True False None self',
  },
  rust: {
    ...C_LIKE, strings: '"', lifetimes: true,
    words: 'as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return static struct super trait type unsafe use where while',
    values: 'true false self Self None Some Ok Err',
  },
  go: {
    ...C_LIKE, template: true,
    words: 'break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var',
    values: 'true false nil iota',
  },
  c: {
    ...C_LIKE, preprocessor: true,
    words: 'abstract alignas auto bool break case catch char class concept const constexpr continue decltype default delete do double else enum explicit export extends extern final finally float for foreach friend fun func get goto guard if implements import in inline instanceof int interface internal is let long mutable namespace new noexcept object operator out override package private protected public readonly record ref return sealed short signed sizeof static struct super switch synchronized template this throw throws try typedef typename union unsigned using val var virtual void volatile when where while yield string async await',
    values: 'true false null nullptr nil NULL',
  },
  shell: {
    line: '(?<![^\\s])#', strings: `"'`, variables: true,
    words: 'if then else elif fi for in do done while until case esac function return local export source alias set unset echo cd exit sudo',
    values: 'true false',
  },
  json: { strings: '"', keys: true, words: '', values: 'true false null' },
  sql: {
    line: '--', block: ['\\/\\*', '\\*\\/'], strings: `"'`, insensitive: true,
    words: 'add all alter and as asc between by case check column constraint create cross default delete desc distinct drop else end exists foreign from full group having if in index inner insert into is join key left like limit not null offset on or order outer primary references right select set table then union unique update using values view when where with',
    values: 'true false',
  },
  yaml: { line: '(?<![^\\s])#', strings: `"'`, keys: true, words: '', values: 'true false null yes no' },
  ruby: {
    line: '#', strings: `"'`,
    words: 'alias and begin break case class def defined do else elsif end ensure for if in module next not or redo rescue retry return self super then undef unless until when while yield require attr_accessor puts',
    values: 'true false nil',
  },
  css: { block: ['\\/\\*', '\\*\\/'], strings: `"'`, keys: true, words: '', values: '' },
  markup: { block: ['<!--', '-->'], strings: `"'`, tags: true, words: '', values: '' },
};
const ALIASES = {
  js: 'javascript', jsx: 'javascript', ts: 'javascript', tsx: 'javascript', typescript: 'javascript', mjs: 'javascript',
  py: 'python', python3: 'python', rs: 'rust', golang: 'go',
  'c++': 'c', cpp: 'c', h: 'c', hpp: 'c', java: 'c', kotlin: 'c', kt: 'c', swift: 'c', 'c#': 'c', csharp: 'c', cs: 'c', dart: 'c', scala: 'c', php: 'c', zig: 'c',
  bash: 'shell', sh: 'shell', zsh: 'shell', console: 'shell', dockerfile: 'shell', makefile: 'shell', powershell: 'shell',
  json5: 'json', jsonc: 'json', jsonl: 'json', yml: 'yaml', toml: 'yaml', ini: 'yaml', rb: 'ruby', scss: 'css', less: 'css',
  html: 'markup', xml: 'markup', svg: 'markup', vue: 'markup', postgresql: 'sql', mysql: 'sql', sqlite: 'sql',
};
/** Longer texts are shown plain: colouring is redone while the block streams. */
const LENGTH_MAX = 60_000;
const compiled = new Map();

/** Cuts a text into coloured pieces; an unknown language gives one piece. */
export function highlight(text, language) {
  if (text === '') return [];
  if (text.length > LENGTH_MAX) return [['', text]];
  if (language === 'diff' || language === 'patch') return diff(text);
  const name = Object.hasOwn(LANGUAGES, language) ? language : Object.hasOwn(ALIASES, language) ? ALIASES[language] : null;
  if (!name) return [['', text]];
  if (!compiled.has(name)) compiled.set(name, compile(LANGUAGES[name]));
  const { pattern, kindOf } = compiled.get(name);
  const out = [];
  let from = 0;
  for (const found of text.matchAll(pattern)) {
    const kind = kindOf(found.groups);
    if (!kind) continue;
    if (found.index > from) out.push(['', text.slice(from, found.index)]);
    out.push([kind, found[0]]);
    from = found.index + found[0].length;
  }
  if (from < text.length) out.push(['', text.slice(from)]);
  return out;
}

function diff(text) {
  return text.split(/(?<=\n)/).map((line) => [line[0] === '+' ? 'string' : line[0] === '-' ? 'removed' : line[0] === '@' ? 'keyword' : '', line]);
}

function compile(language) {
  const words = new Set(language.words.split(' '));
  const values = new Set(language.values.split(' '));
  const parts = [];
  const comments = [];
  if (language.block) comments.push(`${language.block[0]}[\\s\\S]*?(?:${language.block[1]}|$)`);
  if (language.line) comments.push(`${language.line}[^\\n]*`);
  if (comments.length) parts.push(`(?<comment>${comments.join('|')})`);
  if (language.preprocessor) parts.push('(?<meta>(?<=^|\\n)[ \\t]*#[a-z]+[^\\n]*)');
  if (language.tags) parts.push('(?<keyword><\\/?[A-Za-z][\\w:-]*|\\/?>)|(?<name>[A-Za-z][\\w:-]*(?==))');
  if (language.keys) parts.push('(?<name>"(?:[^"\\\\\\n]|\\\\.)*"(?=\\s*:)|(?<=^|[\\n{;])[ \\t]*(?:- )*[\\w.@#-]+(?=\\s*[:=] ?))');
  const strings = [];
  if (language.triple) strings.push('"""[\\s\\S]*?(?:"""|$)', "'''[\\s\\S]*?(?:'''|$)");
  if (language.template) strings.push('`(?:[^`\\\\]|\\\\[\\s\\S])*(?:`|$)');
  for (const quote of language.strings) strings.push(`${quote}(?:[^${quote}\\\\\\n]|\\\\.)*(?:${quote}|(?=\\n)|$)`);
  if (language.lifetimes) strings.push("'(?:[^'\\\\\\n]|\\\\[^\\n]{1,8})'");
  parts.push(`(?<string>${strings.join('|')})`);
  if (language.variables) parts.push('(?<name>\\$\\{?[\\w@#?*!-]+\\}?|(?<=\\s)--?[A-Za-z][\\w-]*)');
  parts.push('(?<number>(?<![\\w.])(?:0[xX][\\da-fA-F_]+|0[bB][01_]+|\\d[\\d_]*(?:\\.\\d[\\d_]*)?(?:[eE][+-]?\\d+)?)\\w*)');
  parts.push('(?<call>[A-Za-z_]\\w*(?=\\s*!?\\())|(?<word>[A-Za-z_]\\w*)');
  const kindOf = (groups) => {
    for (const kind of ['comment', 'meta', 'keyword', 'string', 'name', 'number']) if (groups[kind] !== undefined) return kind;
    const found = groups.call ?? groups.word;
    const word = language.insensitive ? found.toLowerCase() : found;
    if (words.has(word)) return 'keyword';
    if (values.has(word)) return 'number';
    if (groups.call !== undefined) return 'call';
    return /^[A-Z][a-z]/.test(word) && !language.insensitive && !language.tags && !language.keys ? 'type' : '';
  };
  // Two alternatives may carry the same group name in newer engines only, so `name` is used once a language.
  return { pattern: new RegExp(parts.join('|'), 'g'), kindOf };
}
