//! `repack`: the copy computes the same, is finished after an interruption, and is used automatically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::Checkpoint;
use experts::Device;
use experts::device::{Access, Files};
use experts::reader::{Method, ReadEngine};
use model::{DecoderSpec, Logits};
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};

use super::{Home, assert_has, repository};

const TOKENS: &str = "1 2 3 40 5 60 7 80 9 100 11 12";

/// The logits of a model.
#[track_caller]
fn logits(home: &Home, model: &str) -> Vec<u8> {
    logits_with(home, model, &[])
}

/// The same with experts from the disk.
#[track_caller]
fn streamed_logits(home: &Home, model: &str) -> Vec<u8> {
    logits_with(home, model, &["--expert-slots", "8"])
}

#[track_caller]
fn logits_with(home: &Home, model: &str, options: &[&str]) -> Vec<u8> {
    let arguments = ["logits", model, "--tokens", TOKENS, "--greedy", "4", "--out", "logits"];
    home.run(&[&arguments, options].concat()).good();
    fs::read(home.path().join("logits")).unwrap()
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect()
}

/// A model in the Hugging Face cache of this home, as `org/repo`.
fn cached_model(home: &Home, model: &str) -> PathBuf {
    let copy = home.copy_model(model);
    let repository = home.path().join(".cache/huggingface/hub/models--org--repo");
    let snapshot = repository.join("snapshots/0123456789abcdef0123456789abcdef01234567");
    fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    fs::rename(copy, &snapshot).unwrap();
    home.write(
        ".cache/huggingface/hub/models--org--repo/refs/main",
        "0123456789abcdef0123456789abcdef01234567",
    );
    snapshot
}

const USUAL: &str = ".cache/millstream/repacked/org--repo";

/// Every model in testdata that has experts, and Pebble.
fn models() -> Vec<PathBuf> {
    let folders = fs::read_dir(repository("testdata/models")).unwrap();
    let mut models: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    models.retain(|folder| spec(folder).1.moe_layers().next().is_some());
    models.push(repository("models/pebble"));
    models.sort();
    assert!(models.len() > 20 && models.iter().any(|model| model.ends_with("gemma4-4bit")));
    models
}

fn spec(folder: &Path) -> (Checkpoint, DecoderSpec) {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let spec = model::arch::spec(&checkpoint).unwrap();
    (checkpoint, spec)
}

/// Numbers of slots from one layer's top k, of each size of expert, to nearly all experts.
fn slot_counts(spec: &DecoderSpec) -> [usize; 3] {
    let layers = || spec.moe_layers().map(|(_, moe)| moe);
    let sizes: BTreeSet<u64> = layers().map(|moe| moe.experts.bytes_per_expert()).collect();
    let least = layers().map(|moe| moe.experts_per_token()).max().unwrap() * sizes.len();
    let all: usize = layers().map(|moe| moe.experts.experts()).sum();
    [least, least.max(all / 3), least.max(all * 2 / 3)]
}

/// The logits of a prompt and of so many tokens that follow greedily, and the tokens. Inside this process: the
/// program would try the disk anew for every number of slots.
fn answer(folder: &Path, slots: Option<usize>, greedy: usize) -> (Vec<u32>, Vec<u32>) {
    let (checkpoint, spec) = spec(folder);
    let streaming = if slots.is_some() { Streaming::Always } else { Streaming::Never };
    let (context, chunk) = (Some(256), Some(64));
    let request =
        PlanRequest { context, chunk, expert_slots: slots, streaming, ..PlanRequest::default() };
    let options = Options { threads: 2, ..Plan::new(&spec, &request).unwrap().options };
    let device = slots.map(|_| {
        let files = Files::open(&checkpoint, Access::Buffered).unwrap();
        (Arc::new(files) as Arc<dyn Device>, Method { queue: ReadEngine::Threads, depth: 4 })
    });
    let prompt: Vec<u32> = (0..100).map(|i: u32| i * 7919 % spec.vocab as u32).collect();
    let mut runner = Runner::load_from(&checkpoint, spec, &options, device, &|_, _| {}).unwrap();
    let mut sequence = runner.sequence().unwrap();
    let (mut logits, mut said, mut next) = (Vec::new(), Vec::new(), prompt);
    for _ in 0..=greedy {
        let mut best = (0, f32::NEG_INFINITY);
        runner
            .feed(&mut sequence, &next, Logits::Last, |_, values| {
                logits.extend(values.iter().map(|value| value.to_bits()));
                for (token, &value) in values.iter().enumerate() {
                    best = if value > best.1 { (token as u32, value) } else { best };
                }
            })
            .unwrap();
        said.push(best.0);
        next = vec![best.0];
    }
    (logits, said)
}

#[test]
fn a_copy_computes_the_same_whatever_the_layout() {
    let is_long = std::env::var_os("MILLSTREAM_LONG_TESTS").is_some();
    for model in models() {
        let home = Home::new();
        let copy = home.path().join("copy");
        let ran = home.run(&["repack", model.to_str().unwrap(), "copy"]);
        assert_has(&ran.stderr, &["copy: ", " experts of ", " layers, "]);
        assert_eq!(ran.good(), "");
        let name = model.file_name().unwrap().to_str().unwrap();
        let greedy = if is_long || name == "pebble" { 64 } else { 12 };
        let plain = answer(&model, None, greedy);
        assert!(plain == answer(&copy, None, greedy), "{name}");
        let counts = slot_counts(&spec(&copy).1);
        for &count in if is_long { &counts[..] } else { &counts[..2] } {
            assert!(plain == answer(&copy, Some(count), greedy), "{name} with {count} slots");
        }
        if is_long || name == "pebble" {
            // As it lies, too; the other models are looked at where nothing is repacked.
            assert!(plain == answer(&model, Some(counts[0]), greedy), "{name}");
        }
        assert_eq!(home.run(&["show", "./copy"]).stderr, "", "{name}");
    }
}

#[test]
fn the_program_streams_a_copy_as_it_streams_the_model() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_moe-mixed");
    home.run(&["repack", "./model", "copy"]).good();
    let plain = logits(&home, "./model");
    assert!(plain == logits(&home, "./copy"));
    // With as few slots as a model of two sizes of experts can have.
    assert!(plain == streamed_logits(&home, "./model"));
    assert!(plain == streamed_logits(&home, "./copy"));
}

#[test]
fn pebble_can_be_repacked_and_still_answers() {
    let home = Home::new();
    home.run(&["repack", "pebble", "copy"]).good();
    assert!(logits(&home, "pebble") == logits(&home, "./copy"));
    let prompt = ["run", "./copy", "What's the opposite of cold?", "--temperature", "0"];
    assert_eq!(home.run(&prompt).good(), "The opposite of cold is hot.\n");
    home.run(&["repack", "pebble", "copy", "--verify"]).good();
    // Without a folder it goes into the cache.
    home.run(&["repack", "pebble"]).good();
    let usual = home.path().join(".cache/millstream/repacked/pebble");
    assert!(contents(&usual) == contents(&home.path().join("copy")));
}

#[test]
fn what_was_interrupted_is_finished() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_moe-4bit");
    home.run(&["repack", "./model", "copy"]).good();
    let copy = home.path().join("copy");
    let whole = contents(&copy);
    let again = home.run(&["repack", "./model", "copy", "-v"]);
    assert_has(&again.stderr, &["experts-000.safetensors is complete", "there already."]);

    // As a loss of power leaves it: one file begun, one never written, the last ones missing.
    let name = "experts-001.safetensors";
    fs::write(copy.join(format!("{name}.partial")), &whole[name][..5000]).unwrap();
    for name in [name, "resident-00001.safetensors", "config.json", "millstream.json"] {
        fs::remove_file(copy.join(name)).unwrap();
    }
    let stderr = home.run(&["show", "./copy"]).bad(1);
    assert_has(&stderr, &["config.json"]);
    let ran = home.run(&["repack", "./model", "copy", "-v"]);
    assert_has(&ran.stderr, &["experts-000.safetensors is complete", "1 weight files were there"]);
    ran.good();
    assert!(contents(&copy) == whole);

    // A file that was cut is written anew.
    fs::write(copy.join(name), &whole[name][..whole[name].len() - 1]).unwrap();
    home.run(&["repack", "./model", "copy"]).good();
    assert!(contents(&copy) == whole);
}

#[test]
fn a_wrong_byte_is_found() {
    let home = Home::new();
    home.copy_model("testdata/models/qwen3_moe-mxfp4");
    assert_has(
        &home.run(&["repack", "./model", "copy", "--verify"]).bad(1),
        &["error: there is no copy in copy", "hint: "],
    );
    home.run(&["repack", "./model", "copy"]).good();
    let verified = home.run(&["repack", "./model", "copy", "--verify"]);
    assert_has(&verified.stderr, &["files are as they should be"]);
    verified.good();

    let file = home.path().join("copy/experts-001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 4096;
    bytes[last] ^= 1;
    fs::write(&file, &bytes).unwrap();
    fs::remove_file(home.path().join("copy/config.json")).unwrap();
    let before = contents(&home.path().join("copy"));
    let stderr = home.run(&["repack", "./model", "copy", "--verify"]).bad(1);
    let place = format!("experts-001.safetensors is wrong at byte {last}, in model.layers.1.");
    assert_has(&stderr, &["error: copy: ", &place, "config.json is missing", "hint: delete"]);
    assert!(contents(&home.path().join("copy")) == before, "verifying writes nothing");
    fs::remove_file(&file).unwrap();
    home.run(&["repack", "./model", "copy"]).good();
    home.run(&["repack", "./model", "copy", "--verify"]).good();
}

#[test]
fn a_copy_in_the_cache_is_used_until_the_model_changes() {
    let home = Home::new();
    let snapshot = cached_model(&home, "testdata/models/qwen3_moe-4bit");
    let expect = logits(&home, "org/repo");
    let ran = home.run(&["repack", "org/repo"]);
    assert_has(&ran.stderr, &[USUAL, "used wherever org/repo is requested"]);
    ran.good();
    let show = |model: &str| home.run(&["show", model, "-v"]).stderr;
    let using = "using the repacked copy in ";
    assert_has(&show("org/repo"), &[using, USUAL]);
    assert_has(&show(snapshot.to_str().unwrap()), &[using]);
    assert!(logits(&home, "org/repo") == expect);

    // Repacking again takes the model, not its copy.
    assert_has(&home.run(&["repack", "org/repo"]).stderr, &["All of it was there already."]);
    let copy = home.path().join(USUAL);
    let stderr = home.run(&["repack", copy.to_str().unwrap(), "twice"]).bad(1);
    assert_has(&stderr, &["is a repacked copy already"]);

    // A new README changes nothing; a new template does, and is taken over without the weights.
    fs::write(snapshot.join("README.md"), "New.").unwrap();
    assert_has(&show("org/repo"), &[using]);
    fs::write(snapshot.join("chat_template.jinja"), "{{ messages }}").unwrap();
    let stale = "is of another version of the model and is not used";
    assert_has(&show("org/repo"), &["warning: org/repo: the repacked copy in ", stale]);
    assert_has(&home.run(&["repack", "org/repo"]).stderr, &["All of it was there already."]);
    assert_has(&show("org/repo"), &[using]);

    // Other weights under the same name and of the same size.
    let weights = snapshot.join("model.safetensors");
    let original = fs::read(&weights).unwrap();
    let mut bytes = original.clone();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    bytes[header..].reverse();
    fs::write(&weights, &bytes).unwrap();
    assert_has(&show("org/repo"), &[stale]);
    let stderr = home.run(&["repack", "org/repo", "--verify"]).bad(1);
    assert_has(&stderr, &["millstream.json is of another version"]);
    fs::write(&weights, &original).unwrap();
    assert_has(&show("org/repo"), &[using]);

    // A copy that is not whole, or that another program wrote, is not used either.
    fs::rename(copy.join("experts-001.safetensors"), copy.join("gone")).unwrap();
    assert_has(&show("org/repo"), &["is not complete and is not used"]);
    fs::rename(copy.join("gone"), copy.join("experts-001.safetensors")).unwrap();
    fs::write(copy.join("millstream.json"), "{\"format\": 2}").unwrap();
    assert_has(&show("org/repo"), &["written by another version of this program"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let home = Home::new();
    let stderr = home.run(&["repack", "pebble-draft", "copy"]).bad(1);
    assert_has(
        &stderr,
        &["error: pebble-draft has no routed experts: nothing to repack\n", "hint: "],
    );
    home.copy_model("testdata/models/qwen3_moe-4bit");
    for out in ["model", "./model/../model"] {
        let stderr = home.run(&["repack", "./model", out]).bad(1);
        assert_has(&stderr, &["this is the model itself", "hint: name a new or empty folder"]);
    }
    home.write("full/notes.txt", "mine");
    let stderr = home.run(&["repack", "./model", "full"]).bad(1);
    assert_has(&stderr, &["full: holds notes.txt, which is no part of a repacked copy"]);
    let stderr = home.run(&["repack", "./model", "full/notes.txt"]).bad(1);
    assert_has(&stderr, &["is not a folder"]);
    // A new folder inside the model does no harm.
    home.run(&["repack", "./model", "model/copy"]).good();
    home.run(&["repack", "./model", "model/copy", "--verify"]).good();
}
