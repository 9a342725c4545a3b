//! Draft heads join a synthetic model, draft for it, and change nothing of what it says.

use std::sync::Arc;

use engine::{Engine, Event, Request};
use model::HeadSpec;
use runtime::{HeadOptions, Options, Runner};
use speculation::Speculation;

use super::*;
use crate::synth::heads::{Head, dflash_config};
use crate::synth::shape::{Dflash, dflash};

const LIKE: &str = "tiny-qwen3.5-moe";

/// A model, and both heads for it.
fn with_heads(folder: &Path) -> (Checkpoint, Checkpoint) {
    let mut mtp = request(LIKE, Format::Mlx, folder.join("model"));
    synth(&mtp);
    mtp.head = Some(Head::mtp(&mtp.shape).expect("a head"));
    let model = Checkpoint::open(&synth(&mtp)).expect("opens");
    let mut dflash = request(LIKE, Format::Mlx, folder.join("dflash"));
    dflash.head = Some(Head::dflash(&dflash.shape).expect("a draft"));
    (model, Checkpoint::open(&synth(&dflash)).expect("opens"))
}

/// The answers to a few prompts of noise, and how many drafted tokens were wrong.
fn answers(model: &Checkpoint, head: Option<HeadOptions>) -> (Vec<u32>, usize) {
    let options = Options { context: 256, threads: 1, head, ..Options::default() };
    let runner = Runner::load(model, &options, &|_, _| {}).expect("loads");
    let speculation = Speculation { ngram: false, fixed: Some(3), ..Speculation::default() };
    let mut engine = Engine::speculating(runner, speculation).expect("drafts");
    let (mut tokens, mut wrong) = (Vec::new(), 0);
    for prompt in 0..3u32 {
        let prompt = (0..70).map(|index| (prompt * 977 + index * 61) % 4096).collect();
        let sampling = engine::SamplingParams::greedy();
        let request = Request { prompt, max_tokens: 24, sampling, ..Request::default() };
        engine.submit(request).expect("fits");
        while !engine.is_idle() {
            for event in engine.step().expect("runs") {
                match event {
                    Event::Token { sampled, .. } => tokens.push(sampled.token),
                    Event::Finished { usage, .. } => wrong += usage.rejected_drafts,
                    Event::Failed { error, .. } => panic!("{error}"),
                    Event::Prefill { .. } => {}
                }
            }
        }
    }
    (tokens, wrong)
}

#[test]
fn heads_draft_in_vain_and_change_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (model, draft) = with_heads(folder.path());
    assert!(model.warnings().is_empty(), "{:?}", model.warnings());
    let spec = model::arch::spec(&model).expect("a model");
    let mtp = HeadSpec::mtp(&model, &spec).expect("read").expect("there");
    let dflash = HeadSpec::dflash(&draft, &spec).expect("read");
    let (plain, none) = answers(&model, None);
    assert_eq!((plain.len(), none), (3 * 24, 0));
    let heads = [(mtp, None), (dflash, Some(Arc::new(draft)))];
    for (spec, checkpoint) in heads {
        let name = spec.name();
        let head = HeadOptions { spec: Arc::new(spec), checkpoint };
        let (tokens, wrong) = answers(&model, Some(head));
        assert_eq!(tokens, plain, "{name}");
        assert!(wrong > 3 * 24, "{name}: {wrong} tokens wrong");
    }
}

#[test]
fn an_mtp_head_leaves_the_rest_of_its_model_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("model");
    let mut request = request(LIKE, Format::Mlx, out.clone());
    synth(&request);
    let read = |name: &str| fs::read(out.join(name)).expect(name);
    let before = (read("model.safetensors"), read("config.json"), read("tokenizer.json"));
    request.head = Some(Head::Mtp);
    synth(&request);
    let first = read("mtp.safetensors");
    assert_eq!((read("model.safetensors"), read("config.json"), read("tokenizer.json")), before);
    let listed = Checkpoint::open(&out).expect("opens");
    assert!(listed.has_linear("mtp.fc") && listed.warnings().is_empty());

    let again = write(&request, &|_, _| Ok(())).expect_err("it is there");
    assert!(matches!(&again, Error::Exists { path } if path.ends_with("mtp.safetensors")));
    request.force = true;
    synth(&request);
    assert_eq!(read("mtp.safetensors"), first);
    let names = fs::read_dir(&out).expect("a folder").count();
    // Another model in the same place has no head any more.
    request.head = None;
    synth(&request);
    assert_eq!(fs::read_dir(&out).expect("a folder").count(), names - 1);
    let checkpoint = Checkpoint::open(&out).expect("opens");
    assert!(!checkpoint.has_linear("mtp.fc") && checkpoint.warnings().is_empty());
}

#[test]
fn a_head_is_for_one_shape() {
    let folder = tempfile::tempdir().expect("a folder");
    let llama = find("tiny-llama").expect("a shape");
    for head in [Head::mtp(&llama), Head::dflash(&llama)] {
        let error = head.expect_err("no head");
        assert!(error.to_string().ends_with(" of tiny-llama") && error.hint().is_some(), "{error}");
    }
    let mut request = request(LIKE, Format::Mlx, folder.path().join("llama"));
    synth(&super::request("tiny-llama", Format::Mlx, request.out.clone()));
    request.head = Some(Head::Mtp);
    let other = write(&request, &|_, _| Ok(())).expect_err("another model");
    assert!(matches!(&other, Error::OtherModel { got, .. } if got.contains("llama")), "{other}");
    assert!(other.hint().is_some());
    request.out = folder.path().join("nothing");
    let nothing = write(&request, &|_, _| Ok(())).expect_err("no model");
    assert!(matches!(&nothing, Error::OtherModel { .. }) && nothing.hint().is_some(), "{nothing}");
    request.format = Format::Gguf;
    assert!(matches!(write(&request, &|_, _| Ok(())), Err(Error::NoGguf { .. })));
}

/// Heads of published shapes, as files of holes: the loader must find all tensors of the sizes it expects.
#[test]
fn heads_of_every_shape_are_such_as_the_loader_knows() {
    let mut drafts = 0;
    for like in names() {
        let shape = find(like).expect("a shape");
        let folder = tempfile::tempdir().expect("a folder");
        let mut whole = request(like, Format::Mlx, folder.path().join("model"));
        whole.layers = shape.layers.min(12);
        let mut tensors = tensors::tensors(&shape, whole.layers, VALUES);
        if shape.family == Family::Qwen35 {
            tensors.extend(Head::Mtp.tensors(&whole));
        }
        fs::create_dir(&whole.out).expect("a folder");
        mlx::write_holes(&whole.out, &shape, whole.layers, &tensors);
        let checkpoint = Checkpoint::open(&whole.out).expect("opens");
        let spec = model::arch::spec(&checkpoint).expect("a model");
        let mtp =
            HeadSpec::mtp(&checkpoint, &spec).unwrap_or_else(|error| panic!("{like}: {error}"));
        assert_eq!(mtp.is_some(), shape.family == Family::Qwen35, "{like}");

        let Some(draft) = dflash(&shape) else { continue };
        let out = folder.path().join("dflash");
        fs::create_dir(&out).expect("a folder");
        let tensors = Head::Dflash(draft).tensors(&whole);
        mlx::write_holes(&out, &shape, whole.layers, &tensors);
        let config = dflash_config(&shape, &draft, whole.layers).to_string();
        fs::write(out.join("config.json"), config).expect("written");
        let files = Checkpoint::open(&out).expect("opens");
        let head =
            HeadSpec::dflash(&files, &spec).unwrap_or_else(|error| panic!("{like}: {error}"));
        assert_eq!(head.reach() + 1, Dflash::BLOCK_SIZE, "{like}");
        drafts += 1;
    }
    assert_eq!(drafts, 4);
    // As published (z-lab's config.json of these models).
    assert_eq!(Dflash::taps(40), [1, 10, 19, 28, 37]);
    assert_eq!(Dflash::taps(32), [1, 8, 15, 22, 29]);
    assert_eq!(Dflash::taps(64), [1, 16, 31, 46, 61]);
    assert_eq!(Dflash::taps(12), [1, 3, 5, 7, 9]);
    assert_eq!((Dflash::taps(4), Dflash::taps(1)), (vec![1], vec![0]));
}
