//! Hostile templates: each ends in an error that names the template and the line, and takes little memory.
//!
//! A binary of its own, since its allocator counts.

use serde_json::json;
use text::{ChatRequest, ChatTemplate, Error, Message, ModelText};

use counting::{peak_in, peak_of, turn};

mod counting;

const CONTEXT_TOKENS: usize = 4096;
/// What one value may have, as the head of `template.rs` says, where the conversation is short.
const VALUE_BYTES: usize = (512 << 10) + 32 * CONTEXT_TOKENS;
/// In addition to the values: the compiled template, the engine's stacks, the error.
const BESIDE_BYTES: usize = 6 << 20;

/// Renders, and gives the most memory that was held meanwhile.
fn render(source: &str) -> (Result<String, Error>, usize) {
    peak_of(|| {
        ChatTemplate::new(source, Some("<s>"), None).and_then(|mut template| {
            template.set_context(CONTEXT_TOKENS);
            template.render_exact(&ChatRequest::new([Message::new("user", "hello there")]))
        })
    })
}

#[track_caller]
fn check_memory(source: &str, peak: usize) {
    let most = 8 * VALUE_BYTES + BESIDE_BYTES;
    let start: String = source.chars().take(300).collect();
    assert!(peak <= most, "{peak} bytes, more than {most}: {start}");
}

/// The template goes past a limit at its third line.
#[track_caller]
fn check(expression: &str) {
    let source = format!(
        "{{% set big = 'x' * 500000 %}}{{% set list = range(20000)|list %}}\n\n{}",
        if expression.starts_with("{%") {
            expression.to_owned()
        } else {
            format!("{{{{ {expression} }}}}")
        }
    );
    let (rendered, peak) = render(&source);
    check_memory(&source, peak);
    match rendered {
        Err(Error::TemplateLimit { template, line: Some(3), limit }) => {
            assert_eq!(template, "chat template");
            assert!(limit.contains("more than"), "{limit}");
        }
        other => panic!("{expression}: {:?}", other.map(|text| text.len())),
    }
}

#[test]
fn the_templates_of_the_report_end_in_errors() {
    for expression in [
        "'x'|indent(10**10)",
        "'x'|indent(10**10, true)",
        "'{:>10000000000}'.format(1)",
        "'{:>{}}'.format(1, 10**10)",
        "'%1000000000d' % 1",
        "'%.1000000000f' % 1.5",
        "'%*d' % (10**10, 1)",
        "'%1000000000d'|format(1)",
        "('x' * 1000).replace('x', 'y' * 1000).replace('y', 'z' * 1000)",
        "'x' * 1000000000",
        "1000000000 * 'x'",
        "(range(100000)|list * 10)|join('x' * 1000)",
        "('x' * 1000).join(['a'] * 100000)",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% for i in range(1000) %}{{ big }}{% endfor %}",
        "{% set x %}{% for i in range(1000) %}{{ big }}{% endfor %}{% endset %}",
    ] {
        check(expression);
    }
}

#[test]
fn every_filter_and_method_that_makes_much_of_little_is_limited() {
    for expression in [
        // Text.
        "(big ~ big ~ big)|upper",
        "[list] * 100000",
        "(list, list) * 100000",
        "list * 1000",
        "big|replace('x', 'yyyyyyyyyy')",
        "big|replace('', 'yyyyyyyyyy')",
        "big.replace('x', 'yyyyyyyyyy')",
        "big.center(10**9)",
        "big.ljust(10**9)",
        "big.rjust(10**9)",
        "'1'.zfill(10**9)",
        "'x'.center(10**8, '😀')",
        "('\\n' * 1000)|indent(10000, blank=true)",
        "big|list",
        "big.split('x')",
        "big|split('x')",
        "big.splitlines().__len__ or ('\\n' * 500000).splitlines()",
        "('a\\n' * 200000)|lines",
        "('a ' * 200000).split()",
        "('a ' * 200000).rsplit()",
        "('a ' * 200000)|split",
        "[big, big, big]|join",
        "list|join(big)",
        "big.join(['a', 'b', 'c', 'd'])",
        "[big, big, big]|tojson",
        "[[1]]|tojson(indent=big)|tojson(indent=big)|tojson(separators=(big, big))",
        "([1] * 1000)|tojson(separators=(big, big))",
        "[big, big, big]|string",
        "[big, big, big]|pprint",
        "'%s%s%s' % (big, big, big)",
        "'{0}{0}{0}'.format(big)",
        "'{a}{a}{a}'.format(a=big)",
        "'%(a)s%(a)s%(a)s' % {'a': big}",
        "'%s%s%s'|format(big, big, big)",
        "(big ~ big)|escape",
        "(big ~ big)|safe|e",
        "[big, big, big] ~ ''",
        "(big ~ big).upper() ~ big",
        "strftime_now('%c' * 100000)",
        "strftime_now(big)",
        "(['x' * 100000] * 20)|sum(start='')",
        // Lists and dicts.
        "range(100000)|list ~ range(100000)|list ~ range(100000)|list ~ range(100000)|list ~ range(100000)|list",
        "list|batch(10**9, 0)",
        "list|slice(10**9)",
        "list|slice(10**9, 0)",
        "big|batch(1)",
        "big|reverse|list",
        "big[::-1][::-1][::-1][::-1] ~ big ~ big",
        "big|map('upper')|list",
        "big|select|list",
        "big|sort",
        "big|unique|list",
        "(list + list + list)|reverse",
        "big|groupby('a')",
        "(list + list + list)|sort ~ ''",
        "dict(a=list, b=list, c=list, d=list)|tojson",
        "f(*(list))",
        "f(**{'a': 1}) if f else dict(*(list))",
        "range(*(list))",
        "namespace(**dict(a=1)) and range(*(list))",
        // Text that is written.
        "{% autoescape true %}{{ '<' * 600000 }}{% endautoescape %}",
        "{% macro m() %}{{ big }}{{ big }}{% endmacro %}{{ m() ~ m() ~ m() }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% else %}{{ big }}{% endif %}{% endmacro %}{{ m(8) }}",
        "{% filter upper %}{{ big }}{{ big }}{{ big }}{% endfilter %}",
        "{% macro m() %}{% for i in range(9) %}{{ caller() }}{% endfor %}{% endmacro %}{% call m() %}{{ big }}{% endcall %}",
        "{% for i in range(99999) %}Some text that is written again and again, and never ends.{% endfor %}",
        "{% set x %}{% for i in range(99999) %}Some text that is kept again and again, and never ends.{% endfor %}{% endset %}",
        "{% set x %}{% for i in range(99999) %}                                                  {{ '' }}{% endfor %}{% endset %}",
        "{% set x %}{% for i in range(99999) %}{% raw %}Some text that is {{ raw }}.{% endraw %}{% endfor %}{% endset %}",
        "{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}{{ loop(i) }}{% endif %}{{ big }}{{ big }}{% endfor %}",
    ] {
        check(expression);
    }
}

#[test]
fn values_that_share_what_they_hold_stay_small() {
    let grow = |literal: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(400) %}}{{% set ns.x = {literal} %}}{{% endfor %}}"
        )
    };
    for literal in [
        "[ns.x, ns.x]",
        "(ns.x, ns.x)",
        "{'a': ns.x, 'b': ns.x}",
        "dict(a=ns.x, b=ns.x)",
        "[ns.x] * 10",
        "[ns.x] + [ns.x]",
        "ns.x + ns.x",
        "[[ns.x, ns.x]|sort]|list + [ns.x]",
        "[ns.x]|batch(1)|list + [ns.x]",
        "[ns.x, [ns.x]]|map('list')|list",
    ] {
        check(&grow(literal));
    }
    let deep = |literal: &str| {
        format!(
            "{{% set ns = namespace(x=1) %}}{{% for i in range(90000) %}}{{% set ns.x = {literal} %}}{{% endfor %}}"
        )
    };
    for literal in ["[ns.x]", "(ns.x,)", "{'a': ns.x}", "dict(a=ns.x)", "(ns.x, 1)", "1, ns.x"] {
        check(&deep(literal));
    }
    // Those that could hold themselves are refused, and none of this ends the process.
    for source in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}",
        "{% set ns = namespace(x=namespace()) %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = ns.items() %}{% set ns.x = ns.items() %}{{ ns == ns.x }}",
        "{% for i in [1] %}{% set x = [loop] %}{% endfor %}",
        "{% set ns = namespace() %}{{ {ns: 1} }}{{ {}[[ns]] }}",
        "{{ joiner(namespace()) }}",
    ] {
        let (rendered, peak) = render(source);
        check_memory(source, peak);
        let shown = rendered.map(|text| text.len());
        assert!(shown.is_err() || source.contains("items()"), "{source}: {shown:?}");
    }
}

#[test]
fn work_that_makes_nothing_is_limited() {
    for expression in [
        "{% for i in range(99999) %}{% if 'z' in big %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if big.find('z') %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if big.count('x') %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if big|length %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if list == range(20000)|list %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if 'a' in list %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if list is eq(list) %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if list|max %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{% if list|map('string')|list %}{% endif %}{% endfor %}",
    ] {
        check(expression);
    }
}

#[test]
fn recursion_ends_in_errors() {
    for source in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m() %}{% set x %}{{ m() }}{% endset %}{{ x }}{% endmacro %}{{ m() }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ n() }}{% endcall %}{% endmacro %}{{ n() }}",
        "{% for i in [[1]] recursive %}{{ loop([i]) }}{% endfor %}",
        "{% include 'default' %}",
        "{% import 'default' as x %}{{ x }}",
        "{% extends 'default' %}",
        "{% block a %}{{ self.a() }}{% endblock %}",
    ] {
        let (rendered, peak) = render(source);
        check_memory(source, peak);
        assert!(rendered.is_err(), "{source}");
    }
}

#[test]
fn what_honest_templates_make_is_made() {
    let source = "{% set ns = namespace(all=[], text='') %}\
        {% for i in range(2000) %}{% set ns.all = ns.all + [{'i': i, 'of': messages}] %}\
        {% set ns.text = ns.text ~ i ~ ',' %}{% endfor %}\
        {{ ns.all|length }} {{ ns.text|length }} {{ ns.all[1:][0].i }} {{ (ns.all|map(attribute='i')|list)[-1] }}";
    let (rendered, peak) = render(source);
    assert_eq!(rendered.unwrap(), "2000 8890 1 1999");
    check_memory(source, peak);
}

/// A conversation far longer than the context is rendered, so that it can be refused by its tokens.
#[test]
fn a_long_conversation_is_rendered() {
    let text = "naïve \u{1} \"quoted\" text\n".repeat(100_000);
    let source =
        "{% for m in messages %}{{ m.content }}{{ m|tojson(ensure_ascii=true) }}{% endfor %}";
    let mut template = ChatTemplate::new(source, None, None).unwrap();
    template.set_context(64);
    let request = ChatRequest::new([json!({"role": "user", "content": text})]);
    let rendered = template.render_exact(&request).unwrap();
    assert!(rendered.len() > 2 * text.len());
    // Many small messages, with more structure than text.
    let small = (0..20_000).map(|_| json!({"role": "a", "content": "b", "c": [1, 2]}));
    assert!(template.render_exact(&ChatRequest::new(small)).is_ok());
}

/// Pebble's text with another template.
fn pebble_with(source: &str) -> ModelText {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/pebble/");
    let read = |name: &str| match name {
        "chat_template.jinja" => Ok::<_, Error>(Some(source.as_bytes().to_vec())),
        name => Ok(std::fs::read(format!("{folder}{name}")).ok()),
    };
    let mut text = ModelText::open(read).expect("Pebble's text");
    text.set_context(CONTEXT_TOKENS);
    text
}

#[test]
fn what_rendering_takes_is_reserved_before() {
    let turn = turn();
    let long = json!({"role": "user", "content": "word ".repeat(400_000)});
    let many: Vec<_> = (0..20_000).map(|_| json!({"role": "user", "content": "b"})).collect();
    let nested = json!({"role": "user", "content": "a", "x": vec![json!([[0], {"a": 0}]); 20_000]});
    for messages in [vec![], vec![long], many, vec![nested]] {
        let request = ChatRequest::new(messages);
        for source in [
            "{{ messages }}",
            "{% for m in messages %}{{ m|tojson }}{% endfor %}",
            "{% set x %}{% for m in messages %}{{ m|tojson }}{% endfor %}{% endset %}{{ x }}{{ x }}",
            "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
            "{% set x %}{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}",
            "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m, messages] %}{% endfor %}",
        ] {
            let text = pebble_with(source);
            let mut granted = 0;
            let (_, peak) = peak_in(&turn, || {
                text.rendered(&request, &mut |bytes| {
                    granted = bytes;
                    true
                })
            });
            // A copy of the messages is there before.
            let most = granted + request.held_bytes() + BESIDE_BYTES;
            assert!(peak <= most, "{peak} bytes, more than {most}: {source}");
            let (refused, peak) = peak_in(&turn, || text.rendered(&request, &mut |_| false));
            assert!(matches!(refused, Err(Error::NoMemory { bytes }) if bytes == granted));
            assert!(peak <= 2 * request.held_bytes() + BESIDE_BYTES, "{peak} for nothing");
        }
    }
}

#[test]
fn a_prompt_that_is_longer_without_an_answer_is_not_encoded() {
    let turn = turn();
    let request = ChatRequest::new([Message::new("user", "hello there")]);
    let source = |closed: &str| {
        format!(
            "{{{{ messages[0].content }}}}{{% if add_generation_prompt %}}:{{% else %}}{closed}{{% endif %}}"
        )
    };
    for (closed, stable) in [
        ("", true),
        ("{{ ' and' }}", true),
        ("{{ 'a b ' * 100 }}", false),
        ("{% for i in range(9) %}{{ 'a b ' * 25000 }}{% endfor %}", false),
    ] {
        let text = pebble_with(&source(closed));
        let prompt = text.prompt(&request).unwrap();
        let (tokens, peak) =
            peak_in(&turn, || text.stable_prefix(&request, &prompt, &mut |_| true));
        assert_eq!(tokens > 0, stable, "{closed}: {tokens}");
        check_memory(closed, peak);
        // It is a help, and no more: without memory there is none.
        assert_eq!(text.stable_prefix(&request, &prompt, &mut |_| false), 0);
    }
}

/// A small generator with a seed: the same templates at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        // Knuth's MMIX constants.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn expression(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .pick(&[
                    "ns.x",
                    "ns.y",
                    "'x' * 60000",
                    "messages",
                    "range(9000)",
                    "'{:>90000}'",
                    "[ns.x, ns.y]",
                    "7",
                    "{'a': ns.x, 'b': ns.y}",
                    "(ns.x, ns.x)",
                    "'a,b'",
                    "loop",
                    "ns",
                    "10 ** 9",
                    "big",
                ])
                .to_owned();
        }
        let (left, right) = (self.expression(depth - 1), self.expression(depth - 1));
        let operator = self.pick(&["~", "~", "~", "+", "*", "==", "in", "or"]);
        let filter = self.pick(&[
            "indent(900)",
            "list",
            "join('----')",
            "tojson(indent=9)",
            "upper",
            "replace('x', 'yyyy')",
            "batch(2, 0)",
            "slice(3)",
            "sort",
            "unique",
            "string",
            "reverse",
            "map('list')",
            "map('string')",
            "select",
            "pprint",
            "format(ns.x)",
            "escape",
            "length",
            "first",
            "last",
            "items",
            "dictsort",
            "sum(start='')",
            "split('x')",
            "min",
            "groupby('a')",
            "default(ns.y)",
            "trim",
        ]);
        let method = self.pick(&[
            "split('x')",
            "replace('x', 'zzz')",
            "join(ns.y)",
            "center(90000)",
            "format(ns.x)",
            "splitlines()",
            "upper()",
            "items()",
            "values()",
            "zfill(90000)",
            "strip()",
            "get('a')",
            "count('x')",
            "title()",
        ]);
        match self.below(6) {
            0 => format!("({left}) {operator} ({right})"),
            1 => format!("({left})|{filter}"),
            2 => format!("(({left})|string).{method}"),
            3 => format!("[{left}, {right}]"),
            4 => format!("(({left})|list)[:-1] + [{right}]"),
            _ => format!("({left})|{filter} {operator} ({right})"),
        }
    }
}

#[test]
fn templates_of_amplifiers_stay_within_the_limits() {
    let mut random = Random(31);
    let mut limited = 0;
    for _ in 0..600 {
        let mut source =
            String::from("{% set big = 'x' * 90000 %}{% set ns = namespace(x='xx', y=[1]) %}");
        source.push_str("{% for i in range(60) %}");
        for _ in 0..3 {
            let depth = 1 + random.below(3);
            let expression = random.expression(depth);
            source.push_str(&match random.below(5) {
                0 => format!("{{{{ {expression} }}}}"),
                1 => format!("{{% set ns.x %}}{{{{ ns.y }}}}{{{{ {expression} }}}}{{% endset %}}"),
                2 => format!("{{% set ns.y = {expression} %}}"),
                3 => format!("{{% set ns.x = ns.x ~ {expression} %}}"),
                _ => format!("{{% set ns.y = [ns.y, {expression}] %}}"),
            });
        }
        source.push_str("{% endfor %}");
        let (rendered, peak) = render(&source);
        check_memory(&source, peak);
        limited += usize::from(matches!(rendered, Err(Error::TemplateLimit { .. })));
        assert!(!matches!(&rendered, Err(Error::TemplateSyntax { .. })), "{source}: {rendered:?}");
    }
    // A good part of them runs into a limit, not into an error of types.
    assert!(limited > 60, "{limited}");
}
