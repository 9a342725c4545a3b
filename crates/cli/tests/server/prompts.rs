//! `--memory` holds for `run` as well: a prompt that would take more is refused, whatever it is made of.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::group::Group;
use crate::watched::{MEMORY_MIB, memory_group};

/// How a run ended.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs in this group, if there is one, with a prompt on standard input.
pub(crate) fn run(group: Option<&Group>, options: &[&str], prompt: &str) -> (Option<i32>, String) {
    let ran = ran(group, &[options, &["--max-tokens", "4"]].concat(), prompt);
    (ran.code, ran.stderr)
}

fn ran(group: Option<&Group>, options: &[&str], prompt: &str) -> Ran {
    let program = env!("CARGO_BIN_EXE_millstream");
    let home = tempfile::tempdir().unwrap();
    let mut command = group.map_or_else(|| Command::new(program), |group| group.wrap(program));
    let memory = format!("{MEMORY_MIB}M");
    command.args(["run", "--threads", "1", "--memory", &memory]).args(options);
    command.current_dir(home.path()).env_clear().env("HOME", home.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has refused already may not read to the end.
    let _ = child.stdin.take().unwrap().write_all(prompt.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_prompt_on_standard_input_takes_no_more_than_the_memory() {
    let group = memory_group();
    let run = |prompt: &str| run(group.as_ref(), &["pebble"], prompt);
    for (words, expect) in [
        (9000, "tokens do not fit in a context of 8192"),
        (100_000, "tokens do not fit in a context of 8192"),
        (1_500_000, "far more than a context of 8192 tokens holds"),
        (6_000_000, "which no context holds"),
    ] {
        let (code, said) = run(&"word ".repeat(words));
        assert_eq!(code, Some(1), "{words} words: {said}");
        assert!(said.contains(expect), "{words} words: {said}");
    }
    let (code, said) = run(&"word ".repeat(6000));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(group.as_ref().map_or(0, Group::kills), 0);
}

/// What a run says of its own memory is the peak of all that it did, so those that answer are looked at; the group looks at
/// all of them.
#[test]
fn a_prompt_takes_no_more_than_the_memory_whatever_it_is_made_of() {
    let group = memory_group();
    let mut answered = 0;
    for (unit, counts) in [
        // Text of many tokens, and of few.
        ("aé世", [400, 25_000, 300_000]),
        (" ", [4_000, 600_000, 5_000_000]),
        ("\n", [4_000, 60_000, 5_000_000]),
        ("<think>", [500, 40_000, 400_000]),
    ] {
        for count in counts {
            let prompt = format!("a{}a", unit.repeat(count));
            let ran = ran(group.as_ref(), &["pebble", "--json", "--max-tokens", "1"], &prompt);
            let about = format!("{count} times {unit:?}: {}", ran.stderr);
            match ran.code {
                Some(0) => {
                    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
                    let peak = answer["peak_bytes"].as_u64().unwrap() >> 20;
                    assert!(peak <= MEMORY_MIB, "{peak} MiB for {about}");
                    answered += 1;
                }
                Some(1) => assert!(about.contains("context of 8192"), "{about}"),
                _ => panic!("{about}"),
            }
        }
    }
    assert!(answered >= 4, "{answered} were answered");
    if let Some(group) = group {
        assert_eq!(group.kills(), 0);
        let peak = group.peak_bytes() >> 20;
        assert!(peak <= MEMORY_MIB, "{peak} MiB were taken by a run");
    }
}
