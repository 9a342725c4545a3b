//! Flags over variables over the file over defaults.

use super::{Home, Ran, assert_has};

/// The value and origin of a setting.
#[track_caller]
fn setting(ran: Ran, name: &str) -> (String, String) {
    let settings = ran.json();
    let found =
        settings.as_array().unwrap().iter().find(|setting| setting["name"] == name).unwrap();
    let text = |key: &str| found[key].as_str().unwrap_or("-").to_owned();
    (text("value"), text("origin"))
}

#[test]
fn each_source_is_over_the_next() {
    let home = Home::new();
    let show = ["config", "show", "--json"];
    let expect = |ran, value: &str, origin: &str| {
        assert_eq!(setting(ran, "context"), (value.to_owned(), origin.to_owned()));
    };
    expect(home.run(&show), "-", "default");
    let file = home.write(".config/millstream/config.toml", "kv = \"f32\"\ncontext = 1024\n");
    let place = |line: usize| format!("{}:{line}", file.display());
    expect(home.run(&show), "1024", &place(2));
    home.write(
        ".config/millstream/config.toml",
        "kv = \"f32\"\ncontext = 1024\n[model.pebble]\ncontext = 2048\n",
    );
    expect(home.run(&show), "2048", &place(4));
    let other = ["config", "show", "pebble-draft", "--json"];
    expect(home.run(&other), "1024", &place(2));
    let variable = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        Ran::from(command.env("MILLSTREAM_CONTEXT", "4096").output().unwrap())
    };
    expect(variable(&show), "4096", "MILLSTREAM_CONTEXT");
    let flag = ["config", "show", "--json", "--context", "512"];
    expect(variable(&flag), "512", "command line");
    assert_eq!(setting(home.run(&show), "kv"), ("f32".to_owned(), place(1)));
}

#[test]
fn settings_have_an_effect() {
    let home = Home::new();
    let plan = |home: &Home| home.run(&["plan", "--json"]).json()["context"].clone();
    assert_eq!(plan(&home), 8192);
    home.write(
        ".config/millstream/config.toml",
        "context = 1024\ntemperature = 0\nmax-tokens = 3\n",
    );
    assert_eq!(plan(&home), 1024);
    let answer = home.run(&["run", "What's the opposite of cold?", "--json"]).json();
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    assert_eq!(answer["text"], "The opposite of");
    let mut command = home.command(&["run", "What's the opposite of cold?", "--json"]);
    let ran = Ran::from(command.env("MILLSTREAM_MAX_TOKENS", "4").output().unwrap());
    assert_eq!(ran.json()["usage"]["completion_tokens"], 4);
}

#[test]
fn another_file_can_be_named() {
    let home = Home::new();
    home.write(".config/millstream/config.toml", "context = 1024\n");
    home.write("other.toml", "context = 512\n");
    let named = home.run(&["config", "show", "--json", "--config", "other.toml"]);
    assert_eq!(setting(named, "context").0, "512");
    let mut command = home.command(&["config", "show", "--json"]);
    let ran = Ran::from(command.env("MILLSTREAM_CONFIG", "other.toml").output().unwrap());
    assert_eq!(setting(ran, "context").0, "512");
    let stderr = home.run(&["plan", "--config", "nowhere.toml"]).bad(1);
    assert_has(
        &stderr,
        &["error: cannot read the settings in nowhere.toml\n", "caused by: No such file"],
    );
}

#[test]
fn mistakes_in_the_file_are_named_by_line() {
    let home = Home::new();
    let file = home.write(".config/millstream/config.toml", "kv = \"f16\"\n\ntemprature = 1\n");
    let stderr = home.run(&["plan"]).bad(1);
    let expect = format!("error: {}:3: unknown setting `temprature`\n", file.display());
    assert_has(&stderr, &[&expect, "hint: settings are memory, context"]);
    home.write(".config/millstream/config.toml", "kv = \"f8\"\n");
    let stderr = home.run(&["plan"]).bad(1);
    assert_has(&stderr, &[":1: bad value for `kv`\n", "caused by: invalid value 'f8'", "f16, f32"]);
    // What a shell runs when it starts must not depend on it.
    home.run(&["completions", "bash"]).good();
}

#[test]
fn variables_of_flags_take_yes_and_no() {
    let home = Home::new();
    for (value, json) in [("1", true), ("true", true), ("yes", true), ("0", false), ("off", false)]
    {
        let mut command = home.command(&["list"]);
        let text = Ran::from(command.env("MILLSTREAM_JSON", value).output().unwrap()).good();
        assert_eq!(text.starts_with('['), json, "{value}");
    }
    let mut command = home.command(&["list"]);
    Ran::from(command.env("MILLSTREAM_JSON", "maybe").output().unwrap()).bad(2);
}

#[test]
fn the_table_lists_every_setting() {
    let home = Home::new();
    insta::assert_snapshot!("config_show", home.run(&["config", "show", "--threads", "2"]).good());
}
