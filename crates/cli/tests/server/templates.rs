//! Chat templates that make much of little, in the real program: an error that names the template and the line.

use std::path::Path;

use serde_json::json;

use crate::prompts::run;
use crate::served::{COLD, HOT, question};
use crate::watched::{MEMORY_MIB, Watched, memory_group};
use crate::weights::pebble;

/// What past templates could do, each with the line of its own; `big` and `list` are made on the second.
const HOSTILE: [&str; 16] = [
    "{{ 'x'|indent(10**10) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ ('x' * 2000).replace('x', 'y' * 2000).replace('y', 'z' * 2000) }}",
    "{{ 'x' * 10000000000 }}",
    "{{ (list * 100)|join('x' * 1000) }}",
    "{{ range(100000)|list|join(big) }}",
    "{% set ns = namespace(s='x' * 8) %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x' * 8) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% for i in range(9000) %}{{ big }}{% endfor %}",
    "{% set x %}{% for i in range(9000) %}{{ big }}{% endfor %}{% endset %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(400) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
    "{{ [big, big, big, big, big]|tojson }}",
    "{% for i in range(99999) %}{% if 'z' in big %}{% endif %}{% endfor %}",
    "{% macro m(n) %}{{ big }}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(9) }}",
];

/// What is longer without the opening of an answer than with it, as a whole prompt may be.
const LONGER_WHEN_CLOSED: &str = "{% if not add_generation_prompt %}{% for i in range(6) %}{{ 'a b ' * 55000 }}{% endfor %}{% endif %}";

/// The line of the first of them.
const FIRST_LINE: usize = 4;

/// A folder with Pebble and a template that does what the last message requests by number, and else what Pebble's does.
fn model() -> tempfile::TempDir {
    let folder = pebble();
    let path = folder.path().join("chat_template.jinja");
    let own = std::fs::read_to_string(&path).unwrap();
    let mut template = String::from(
        "{%- set asked = messages[-1].content %}\n\
         {%- set big = 'x' * 500000 %}{% set list = range(20000)|list %}\n{%- if false %}\n",
    );
    for (number, hostile) in HOSTILE.iter().enumerate() {
        template.push_str(&format!("{{%- elif asked == 'number {number}' %}}{hostile}\n"));
    }
    template.push_str("{%- else %}\n");
    std::fs::write(&path, format!("{template}{own}{LONGER_WHEN_CLOSED}{{%- endif %}}")).unwrap();
    folder
}

fn shown(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

#[test]
fn hostile_templates_end_requests_and_not_the_server() {
    let folder = model();
    let watched = Watched::start_with(&[shown(folder.path())]);
    for (number, hostile) in HOSTILE.iter().enumerate() {
        // All paths render by the same code.
        let paths = ["/v1/chat/completions", "/v1/messages", "/apply-template"];
        for path in &paths[number % paths.len()..][..1] {
            let reply = watched.served.post(path, &question(&format!("number {number}")));
            let (status, text) = (reply.status, reply.text());
            assert_eq!(status, 400, "{hostile}: {text}");
            let line = format!("chat template, line {}: ", FIRST_LINE + number);
            assert!(text.contains(&line) && text.contains("more than"), "{hostile}: {text}");
        }
        watched.check_peak(hostile);
    }
    // The prompt itself is as it should be, and only the guess about the next one is not.
    let answer = watched.served.chat(&question(COLD));
    assert_eq!(answer["choices"][0]["message"]["content"], HOT);
    watched.check_peak("a prompt that is longer when it is closed");
    let said = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>a"},
        {"role": "user", "content": COLD}]);
    watched.served.chat(&json!({"messages": said, "max_tokens": 1}));
    watched.check_returned();
}

#[test]
fn hostile_templates_end_a_run_with_their_line() {
    let folder = model();
    let group = memory_group();
    for (number, hostile) in HOSTILE.iter().enumerate().step_by(3) {
        let prompt = format!("number {number}");
        let (code, said) = run(group.as_ref(), &[shown(folder.path())], &prompt);
        assert_eq!(code, Some(1), "{hostile}: {said}");
        let line = format!("chat template, line {}: ", FIRST_LINE + number);
        assert!(said.contains(&line) && said.contains("more than"), "{hostile}: {said}");
    }
    let (code, said) = run(group.as_ref(), &[shown(folder.path())], COLD);
    assert_eq!(code, Some(0), "{said}");
    if let Some(group) = group {
        assert_eq!(group.kills(), 0);
        let peak = group.peak_bytes() >> 20;
        assert!(peak <= MEMORY_MIB, "{peak} MiB were taken by a run");
    }
}
