//! A conversation on a terminal. Python's `pty` module plays the terminal, where there is one.

use std::process::Command;

use serde_json::json;

use super::{Home, assert_has};

/// Plays `script` (see chat.py) and returns everything the terminal showed; `None` where it cannot.
fn play(
    home: &Home,
    arguments: &[&str],
    variables: &[(&str, &str)],
    script: &str,
) -> Option<String> {
    if !cfg!(unix) || Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 to play a terminal");
        return None;
    }
    let player = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/chat.py");
    let mut command = home.command(&[]);
    let binary = command.get_program().to_owned();
    command = Command::new("python3");
    command.arg(player).arg(script).arg(binary).args(arguments);
    command.current_dir(home.path()).env_clear().env("HOME", home.path()).env("TERM", "xterm");
    command
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .envs(variables.iter().copied());
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{shown}\n{}", String::from_utf8_lossy(&output.stderr));
    Some(shown)
}

#[test]
fn a_conversation_has_a_memory_and_ends() {
    let home = Home::new();
    home.write("mine.txt", "mine");
    let script = r#"
        type "What's the opposite of cold?"
        wait "The opposite of cold is hot."
        type "/save talk.json"
        wait "2 messages are in talk.json."
        type "/save talk.json"
        wait "2 messages are in talk.json."
        type "/save mine.txt"
        wait "mine.txt is there and is not a saved conversation"
        type "/clear"
        wait "begins anew"
        type "/load talk.json"
        wait "2 messages from talk.json."
        type "/set temperature 9"
        wait "temperature must be 0 to 2"
        type "/set foo 3"
        wait "there is no `foo`; /set takes system, max-tokens, stop, thinking, temperature"
        type "/set seed"
        wait "/set seed needs a value"
        type "/set max-tokens 2"
        wait "max-tokens is 2."
        type "/nonsense"
        wait "there is no command /nonsense"
        type "/help"
        wait "Ctrl-C stops an answer"
        type "What's the opposite of cold?"
        wait "2 answer tokens"
        type "/bye"
        exit 0
    "#;
    let Some(_) = play(&home, &["run", "--temperature", "0"], &[], script) else { return };
    let saved = std::fs::read_to_string(home.path().join("talk.json")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["model"], "pebble");
    assert_eq!(saved["messages"][1]["content"], "The opposite of cold is hot.");
    assert_eq!(std::fs::read(home.path().join("mine.txt")).unwrap(), b"mine");
    let history = home.path().join(".local/state/millstream/history");
    assert_has(
        &std::fs::read_to_string(history).unwrap(),
        &["What's the opposite of cold?", "/bye"],
    );
}

#[test]
fn several_lines_are_one_message_and_the_system_text_holds() {
    let home = Home::new();
    let script = r#"
        type "/system Be brief."
        wait "hold from now on"
        type "\"\"\"one"
        wait "... "
        send "two\"\"\"\r"
        wait "system\\nBe brief.<|im_end|>"
        wait "one\\ntwo<|im_end|>"
        wait "answer tokens"
        wait ">>> "
        send "\x04"
        exit 0
    "#;
    play(&home, &["run", "--temperature", "0", "-vv"], &[], script);
}

#[test]
fn a_second_turn_reads_only_what_is_new() {
    let home = Home::new();
    // Pebble has recurrent layers, so its sequences cannot be cut back to where two prompts differ.
    let system = "Be brief. ".repeat(60);
    let script = format!(
        "type \"/system {system}\"\nwait \"hold from now on\"\ntype \"What's the opposite of cold?\"\n\
         wait \"answer token\"\ntype \"What's the opposite of hot?\"\nwait \"answer token\"\n\
         type \"What's the opposite of up?\"\nwait \"answer token\"\ntype \"/bye\"\nexit 0"
    );
    let Some(shown) = play(&home, &["run", "--temperature", "0"], &[], &script) else { return };
    let read: Vec<usize> = shown
        .match_indices(" prompt token")
        .map(|(at, _)| shown[..at].rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    let [first, second, third] = read[..] else { panic!("{read:?} in {shown}") };
    assert!(first > 120, "{first}");
    assert!(second < 60 && third < 60, "{read:?}");
}

#[test]
fn ctrl_c_stops_an_answer_and_twice_it_quits() {
    let home = Home::new();
    let long = "one two three four five six ".repeat(1000);
    let saved = serde_json::json!({"model": "pebble", "messages": [
        {"role": "user", "content": long}, {"role": "assistant", "content": "Yes."},
    ]});
    home.write("long.json", saved.to_string());
    // The long prompt is still being read when Ctrl-C comes.
    let script = r#"
        type "/load long.json"
        wait "2 messages from"
        type "Go on."
        wait "reading"
        send "\x03"
        wait " 0 answer tokens"
        type "/clear"
        wait "begins anew"
        type "What's the opposite of cold?"
        wait "The opposite of cold is hot."
        wait ">>> "
        send "\x03"
        wait "Ctrl-C again"
        wait ">>> "
        send "\x03"
        exit 0
    "#;
    play(&home, &["run", "--temperature", "0", "--threads", "1"], &[], script);
}

/// Megabytes that a run had at most, as it says behind each answer.
fn peaks(shown: &str) -> Vec<f64> {
    let ends = shown.match_indices(" MB memory").map(|(at, _)| &shown[..at]);
    ends.map(|text| text.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

#[test]
fn a_conversation_from_a_file_takes_no_more_than_the_memory() {
    let home = Home::new();
    let saved = |message: serde_json::Value| {
        let messages = [message, json!({"role": "assistant", "content": "Yes."})];
        json!({"model": "pebble", "messages": messages}).to_string()
    };
    let called = |arguments: serde_json::Value| {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": arguments}});
        json!({"role": "assistant", "tool_calls": [call]})
    };
    let user = |content: serde_json::Value| json!({"role": "user", "content": content});
    let objects = |count: usize| json!(vec![json!({"a": 0}); count]);
    home.write("full.json", saved(user("word ".repeat(5500).into())));
    // Too much to be read, and too much to be said.
    home.write("values.json", saved(called(objects(300_000))));
    home.write("text.json", saved(called(objects(300_000).to_string().into())));
    home.write("parts.json", saved(user(objects(300_000))));
    home.write("huge.json", saved(user(" ".repeat(30_000_000).into())));
    home.write(
        "thought.json",
        saved(json!({"role": "assistant", "reasoning_content": "word ".repeat(150_000)})),
    );
    home.write(
        "part.json",
        saved(user(json!([{"type": "text", "text": "word ".repeat(150_000)}]))),
    );
    home.write("called.json", saved(called(json!({"x": "word ".repeat(150_000)}))));
    let mut script = String::from(
        "type \"/load full.json\"\nwait \"2 messages from\"\ntype \"Go on.\"\nwait \"MB memory\"\n",
    );
    for refused in ["values", "text", "parts", "huge"] {
        script +=
            &format!("type \"/load {refused}.json\"\nwait \"{refused}.json holds more than\"\n");
    }
    for heavy in ["thought", "part", "called"] {
        script += &format!(
            "type \"/load {heavy}.json\"\nwait \"2 messages from\"\ntype \"Go on.\"\nwait \"context of 8192\"\n"
        );
    }
    script += "type \"/load /dev/zero\"\nwait \"it is not a plain file\"\n\
        type \"/save /dev/zero\"\nwait \"is not a saved conversation\"\n\
        type \"/clear\"\nwait \"begins anew\"\ntype \"What's the opposite of cold?\"\nwait \"MB memory\"\n\
        type \"/bye\"\nexit 0";
    let arguments =
        ["run", "--temperature", "0", "--max-tokens", "8", "--threads", "1", "--memory", "500M"];
    let Some(shown) = play(&home, &arguments, &[], &script) else { return };
    let [usual, after] = peaks(&shown)[..] else { panic!("{shown}") };
    assert!(after <= 500.0 && after - usual <= 32.0, "{usual} MB, then {after} MB:\n{shown}");
}

#[test]
fn colour_is_for_terminals_without_no_color() {
    let home = Home::new();
    let arguments = ["show", "./nowhere"];
    let script = "wait \"does not exist\"\nexit 1";
    let Some(coloured) = play(&home, &arguments, &[], script) else { return };
    assert!(coloured.contains("\u{1b}["), "{coloured:?}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = play(&home, &arguments, &[variable], script).unwrap();
        assert!(!plain.contains("\u{1b}["), "{plain:?}");
    }
}

#[test]
fn thinking_is_shown_on_a_terminal_before_the_answer() {
    let home = Home::new();
    let script = "wait \"thinking: \"\nwait \"42\"\nwait \"answer tokens\"\nexit 0";
    play(&home, &["run", "What is 17 + 25?", "--temperature", "0", "--thinking"], &[], script);
}
