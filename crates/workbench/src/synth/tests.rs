//! The two formats hold one model, and our loader and engine take it.

mod heads;
mod made;
mod router;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use half::f16;

use super::shape::{Delta, Family, find, names};
use super::{Error, Format, Request, Router, Values, draw, mlx, refuse_full_disk, tensors, write};

use format::{Encoding, Float};

const VALUES: Values = Values { seed: 7, group: 32, router: Router::Uniform };

const TINY: [&str; 6] = [
    "tiny-qwen3.5",
    "tiny-qwen3.5-moe",
    "tiny-qwen3.5-tied",
    "tiny-qwen3",
    "tiny-qwen3-moe",
    "tiny-llama",
];

fn request(like: &str, format: Format, out: PathBuf) -> Request {
    Request::new(like, None, VALUES, format, out).expect("a shape")
}

#[track_caller]
fn synth(request: &Request) -> PathBuf {
    write(request, &|_, _| Ok(())).expect("written");
    request.out.clone()
}

/// f32 values of a matrix in an MLX folder, row by row.
fn mlx_values(checkpoint: &Checkpoint, name: &str, rows: usize, cols: usize) -> Vec<f32> {
    let Some(plain) = name.strip_suffix("*") else {
        return checkpoint.read_f32(checkpoint.tensor(name).expect(name)).expect("values");
    };
    let linear = |stack, rows| checkpoint.linear(plain, stack, rows, cols).expect(plain);
    let stack = checkpoint.tensor(&format!("{plain}.weight")).expect(plain).shape.clone();
    let linear = match stack[..] {
        [stack, rows, _] => linear(Some(stack), rows),
        _ => linear(None, rows),
    };
    let Encoding::Affine { bits: 4, group, scale: Float::F16 } = linear.encoding else {
        panic!("{plain}: {:?}", linear.encoding);
    };
    let floats = |part: Option<&checkpoint::Tensor>| {
        checkpoint.read_f32(part.expect("quantized")).expect("values")
    };
    let (scales, biases) = (floats(linear.scales.as_ref()), floats(linear.biases.as_ref()));
    let mut codes = vec![0; rows * cols / 2];
    checkpoint.read_span(linear.weight.span(), &mut codes).expect("codes");
    let value = |index: usize| {
        let code = codes[index / 2] >> (4 * (index % 2)) & 15;
        scales[index / group] * f32::from(code) + biases[index / group]
    };
    (0..rows * cols).map(value).collect()
}

/// A GGUF reader that knows just what the writer writes.
struct Gguf {
    bytes: Vec<u8>,
    at: usize,
    /// Name to type, weights and offset.
    tensors: BTreeMap<String, (u32, usize, usize)>,
    keys: Vec<String>,
}

impl Gguf {
    fn open(path: &Path) -> Gguf {
        let bytes = fs::read(path).expect("a file");
        let mut gguf = Gguf { bytes, at: 8, tensors: BTreeMap::new(), keys: Vec::new() };
        assert_eq!(gguf.bytes[..4], *b"GGUF");
        let (tensors, keys) = (gguf.word(8), gguf.word(8));
        for _ in 0..keys {
            let key = gguf.string();
            gguf.keys.push(key);
            let kind = gguf.word(4);
            gguf.skip_value(kind);
        }
        for _ in 0..tensors {
            let name = gguf.string();
            let dimensions = gguf.word(4);
            let weights = (0..dimensions).map(|_| gguf.word(8)).product();
            let (kind, offset) = (gguf.word(4) as u32, gguf.word(8));
            gguf.tensors.insert(name, (kind, weights, offset));
        }
        let data = gguf.at.next_multiple_of(32);
        gguf.tensors.values_mut().for_each(|tensor| tensor.2 += data);
        gguf
    }

    fn word(&mut self, len: usize) -> usize {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&self.bytes[self.at..self.at + len]);
        self.at += len;
        u64::from_le_bytes(word) as usize
    }

    fn string(&mut self) -> String {
        let len = self.word(8);
        self.at += len;
        String::from_utf8(self.bytes[self.at - len..self.at].to_vec()).expect("UTF-8")
    }

    fn skip_value(&mut self, kind: usize) {
        match kind {
            7 => self.at += 1,
            4..=6 => self.at += 4,
            8 => drop(self.string()),
            9 => {
                let (kind, count) = (self.word(4), self.word(8));
                (0..count).for_each(|_| self.skip_value(kind));
            }
            kind => panic!("a value of kind {kind}"),
        }
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let &(kind, weights, offset) = self.tensors.get(name).expect(name);
        let data = &self.bytes[offset..];
        if kind == 0 {
            let word = |word: &[u8]| f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            return data[..weights * 4].chunks_exact(4).map(word).collect();
        }
        assert_eq!(kind, 3, "{name} is neither F32 nor Q4_1");
        let mut values = Vec::with_capacity(weights);
        for block in data[..weights / 32 * 20].chunks_exact(20) {
            let [scale, bias] =
                [0, 2].map(|at| f16::from_le_bytes([block[at], block[at + 1]]).to_f32());
            let codes = block[4..].iter().map(|byte| byte & 15);
            let codes = codes.chain(block[4..].iter().map(|byte| byte >> 4));
            values.extend(codes.map(|code| scale * f32::from(code) + bias));
        }
        values
    }
}

/// What llama.cpp's converter does to a tensor of ours, written as it is there.
fn converted(like: &str, gguf: &str, values: &[f32], [rows, cols]: [usize; 2]) -> Vec<f32> {
    let shape = find(like).expect("a shape");
    // `groups` groups of `ratio` heads of `width` become `ratio` rounds of `groups` heads.
    let tile = |values: &[f32], groups: usize, ratio: usize, width: usize| -> Vec<f32> {
        let mut out = vec![0.0; values.len()];
        for (head, from) in values.chunks_exact(width).enumerate() {
            let to = (head % ratio * groups + head / ratio) * width;
            out[to..to + width].copy_from_slice(from);
        }
        out
    };
    let part = gguf.split('.').nth(2).unwrap_or_default();
    if shape.family == Family::Llama && matches!(part, "attn_q" | "attn_k") {
        let half = shape.head_dim / 2;
        return values
            .chunks_exact(shape.head_dim * cols)
            .flat_map(|head| tile(head, 2, half, cols))
            .collect();
    }
    let Some(Delta { key_heads, value_heads, head_dim }) = shape.delta else {
        return values.to_vec();
    };
    let ratio = value_heads / key_heads;
    match part {
        "attn_qkv" | "ssm_conv1d" => {
            let (keys, values) = values.split_at(2 * key_heads * head_dim * cols);
            [keys, &tile(values, key_heads, ratio, head_dim * cols)].concat()
        }
        "attn_gate" => tile(values, key_heads, ratio, head_dim * cols),
        "ssm_beta" | "ssm_alpha" => tile(values, key_heads, ratio, cols),
        "ssm_a" => {
            tile(values, key_heads, ratio, 1).into_iter().map(|value| -value.exp()).collect()
        }
        "ssm_dt" => tile(values, key_heads, ratio, 1),
        "ssm_out" => {
            assert_eq!(values.len(), rows * cols);
            values
                .chunks_exact(cols)
                .flat_map(|row| tile(row, key_heads, ratio, head_dim))
                .collect()
        }
        _ => values.to_vec(),
    }
}

#[track_caller]
fn check_same_model(like: &str, values: Values) {
    let folder = tempfile::tempdir().expect("a folder");
    let synth_as = |format, name: &str| {
        let request = Request::new(like, None, values, format, folder.path().join(name));
        synth(&request.expect("a shape"))
    };
    let mlx = Checkpoint::open(&synth_as(Format::Mlx, "mlx")).expect("opens");
    let gguf = Gguf::open(&synth_as(Format::Gguf, "model.gguf"));
    let shape = find(like).expect("a shape");
    let mut compared = 0;
    for tensor in tensors::tensors(&shape, shape.layers, values) {
        let theirs = gguf.values(&tensor.gguf);
        let Some(name) = &tensor.mlx else { continue };
        let is_quantized = matches!(tensor.content, tensors::Content::Affine { .. });
        let name = if is_quantized { format!("{name}*") } else { name.clone() };
        let ours = mlx_values(&mlx, &name, tensor.rows, tensor.cols);
        let ours = converted(like, &tensor.gguf, &ours, [tensor.rows, tensor.cols]);
        assert_eq!(ours, theirs, "{like}: {}", tensor.gguf);
        compared += 1;
    }
    let only_gguf = usize::from(shape.rope_scaling.is_some());
    assert_eq!(compared + only_gguf, gguf.tensors.len(), "{like}: tensors in the GGUF");
    assert!(mlx.warnings().is_empty(), "{like}: {:?}", mlx.warnings());
}

#[test]
fn both_formats_decode_to_the_same_weights() {
    for like in TINY {
        check_same_model(like, VALUES);
    }
    check_same_model("tiny-qwen3.5-moe", Values { group: 64, ..VALUES });
    for like in ["tiny-qwen3.5-moe", "tiny-qwen3-moe"] {
        check_same_model(like, Values { router: Router::Tuned, ..VALUES });
    }
}

#[test]
fn a_seed_decides_every_byte_whatever_the_threads() {
    let folder = tempfile::tempdir().expect("a folder");
    let bytes = |name: &str, seed: u64, threads: usize| {
        let mut request = request("tiny-qwen3.5-moe", Format::Gguf, folder.path().join(name));
        (request.values.seed, request.threads) = (seed, threads);
        fs::read(synth(&request)).expect("a file")
    };
    let first = bytes("a.gguf", 1, 1);
    assert_eq!(first, bytes("b.gguf", 1, 3));
    assert_ne!(first, bytes("c.gguf", 2, 1));
}

#[test]
fn fewer_layers_are_the_first_ones_of_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = request("tiny-qwen3.5", Format::Gguf, folder.path().join("whole.gguf"));
    let mut part = request("tiny-qwen3.5", Format::Gguf, folder.path().join("part.gguf"));
    part.layers = 2;
    let (whole, part) = (Gguf::open(&synth(&whole)), Gguf::open(&synth(&part)));
    assert!(!part.tensors.contains_key("blk.2.attn_norm.weight"));
    for name in part.tensors.keys() {
        assert_eq!(part.values(name), whole.values(name), "{name}");
    }
}

#[test]
fn values_have_the_size_they_should() {
    let row = draw::Key::new(3, "a").row(5);
    let mut values = Vec::new();
    for block in 0..2048 {
        let (scale, bias) = draw::scale(row, block, 0.02);
        for byte in draw::codes(row, block) {
            for code in [byte & 15, byte >> 4] {
                values.push(scale.to_f32() * f32::from(code) + bias.to_f32());
            }
        }
    }
    let plain: Vec<f32> =
        (0..65_536).map(|at| draw::value(row, at, draw::Fill::Normal { std: 0.02 })).collect();
    for values in [values, plain] {
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let std = (values.iter().map(|value| value * value).sum::<f32>() / count).sqrt();
        assert!(mean.abs() < 3e-4 && (std - 0.02).abs() < 6e-4, "mean {mean}, deviation {std}");
    }
}

/// Every shape, as a file of holes: the loader must find all tensors of the sizes it expects.
#[test]
fn every_shape_is_one_that_the_loader_knows() {
    for like in names() {
        let shape = find(like).expect("a shape");
        let layers = shape.layers.min(4);
        let folder = tempfile::tempdir().expect("a folder");
        let tensors = tensors::tensors(&shape, layers, VALUES);
        mlx::write_holes(folder.path(), &shape, layers, &tensors);
        let checkpoint = Checkpoint::open(folder.path()).expect("opens");
        let spec = model::arch::spec(&checkpoint).unwrap_or_else(|error| panic!("{like}: {error}"));
        assert_eq!((spec.layers.len(), spec.vocab), (layers, shape.vocab), "{like}");
        assert!(checkpoint.warnings().is_empty(), "{like}: {:?}", checkpoint.warnings());
    }
}

/// `35b` in a name is 35 billion parameters, give or take what marketing rounds.
#[test]
fn shapes_have_the_parameters_their_names_say() {
    for like in names().into_iter().filter(|name| !name.starts_with("tiny")) {
        let shape = find(like).expect("a shape");
        let billions = |part: &str| part.strip_suffix('b').and_then(|n| n.parse::<f64>().ok());
        let said = like.split('-').find_map(billions).expect("a size") * 1e9;
        let tensors = tensors::tensors(&shape, shape.layers, VALUES);
        let counted: f64 = tensors.iter().map(|t| (t.rows * t.cols) as f64).sum();
        let ratio = counted / said;
        assert!((0.9..1.25).contains(&ratio), "{like} has {counted:.3e} parameters");
    }
}

/// Activations neither explode nor vanish, and different tokens give different answers.
#[test]
fn the_engine_runs_a_synthetic_model() {
    for router in [Router::Uniform, Router::Tuned] {
        check_runs("tiny-qwen3.5-moe", router);
        check_runs("tiny-gpt-oss", router);
        check_runs("tiny-gemma-4", router);
    }
}

#[track_caller]
fn check_runs(like: &str, router: Router) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut request = request(like, Format::Mlx, folder.path().join("model"));
    request.values.router = router;
    let checkpoint = Checkpoint::open(&synth(&request)).expect("opens");
    let options = runtime::Options { context: 64, ..runtime::Options::default() };
    let mut runner = runtime::Runner::load(&checkpoint, &options, &|_, _| {}).expect("loads");
    let mut sequence = runner.sequence().expect("a sequence");
    let tokens: Vec<u32> = (0..64).map(|index| index * 61 % 4096).collect();
    let mut answers = Vec::new();
    let row = |_: usize, logits: &[f32]| {
        let count = logits.len() as f32;
        // What all have in common says nothing: columns that stay give a tied head an offset.
        let mean = logits.iter().sum::<f32>() / count;
        let std = (logits.iter().map(|logit| (logit - mean).powi(2)).sum::<f32>() / count).sqrt();
        assert!((2.0..4.0).contains(&std), "logits of deviation {std}");
        answers.push(crate::argmax(logits));
    };
    runner.feed(&mut sequence, &tokens, model::Logits::All, row).expect("runs");
    answers.sort_unstable();
    answers.dedup();
    assert!(answers.len() > 48, "{} different answers to 64 tokens", answers.len());
}

#[test]
fn what_is_there_is_replaced_only_by_force() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("model");
    fs::create_dir(&out).expect("a folder");
    let mut request = request("tiny-llama", Format::Mlx, out.clone());
    synth(&request);
    let again = write(&request, &|_, _| Ok(())).expect_err("it is there");
    assert!(matches!(again, Error::Exists { .. }), "{again}");
    assert_eq!(again.hint().as_deref(), Some("--force replaces it"));

    // A weight file of another model must not survive: the loader would read it too.
    fs::write(out.join("model-00001-of-00009.safetensors"), b"old").expect("written");
    fs::write(out.join("notes.txt"), b"mine").expect("written");
    request.force = true;
    synth(&request);
    assert!(Checkpoint::open(&out).is_ok());
    assert!(
        out.join("notes.txt").exists() && !out.join("model-00001-of-00009.safetensors").exists()
    );

    let file = folder.path().join("model.gguf");
    fs::write(&file, b"mine").expect("written");
    request.format = Format::Gguf;
    (request.out, request.force) = (file.clone(), false);
    assert!(matches!(write(&request, &|_, _| Ok(())), Err(Error::Exists { .. })));
    request.out = out;
    assert!(matches!(write(&request, &|_, _| Ok(())), Err(Error::IsFolder { .. })));
    (request.out, request.format) = (file.clone(), Format::Mlx);
    assert!(matches!(write(&request, &|_, _| Ok(())), Err(Error::IsFile { .. })));
    assert_eq!(fs::read(file).expect("a file"), b"mine");
}

#[test]
fn what_cannot_be_is_said_before_anything_is_written() {
    let new = |like: &str, layers, values| {
        Request::new(like, layers, values, Format::Mlx, PathBuf::from("out")).map(drop)
    };
    let unknown = new("qwen9", None, VALUES).expect_err("no such shape");
    assert_eq!(unknown.to_string(), "there is no shape `qwen9`");
    assert!(unknown.hint().is_some_and(|hint| hint.contains("qwen3.5-35b-a3b, ")));
    for layers in [0, 41] {
        let error = new("Qwen3.5-35B-A3B", Some(layers), VALUES).expect_err("too few or many");
        let expect = format!("qwen3.5-35b-a3b has 1 to 40 layers, not {layers}");
        assert_eq!(error.to_string(), expect);
    }
    assert!(matches!(
        new("tiny-llama", None, Values { group: 48, ..VALUES }),
        Err(Error::Group { .. })
    ));
    let tuned = Values { router: Router::Tuned, ..VALUES };
    let dense = new("tiny-llama", None, tuned).expect_err("no experts");
    assert_eq!(dense.to_string(), "tiny-llama has no router");

    // 2880 is no multiple of 128.
    let wide = new("gpt-oss-20b", None, Values { group: 128, ..VALUES }).expect_err("no groups");
    assert_eq!(wide.to_string(), "rows of gpt-oss-20b are no whole groups of 128");
    let gguf = Request::new("gpt-oss-20b", None, VALUES, Format::Gguf, PathBuf::from("out"));
    let gguf = gguf.expect_err("no GGUF");
    assert_eq!(gguf.to_string(), "gpt-oss-20b cannot be written as GGUF");
    assert!(wide.hint().is_some() && gguf.hint().is_some());
    let gguf = Request::new("gemma-4-26b-a4b", None, VALUES, Format::Gguf, PathBuf::from("out"));
    let gguf = gguf.expect_err("no GGUF");
    assert_eq!(gguf.to_string(), "gemma-4-26b-a4b cannot be written as GGUF");

    let folder = tempfile::tempdir().expect("a folder");
    let full = refuse_full_disk(&folder.path().join("a/b"), u64::MAX).expect_err("too much");
    assert!(matches!(full, Error::Space { .. }) && full.hint().is_some(), "{full}");
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, b"not a folder").expect("written");
    for format in [Format::Mlx, Format::Gguf] {
        let error = write(&request("tiny-llama", format, file.join("out")), &|_, _| Ok(()));
        assert!(matches!(error, Err(Error::Io { .. })), "{error:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn what_was_interrupted_is_gone_and_what_was_killed_is_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    for format in [Format::Mlx, Format::Gguf] {
        let request = request("tiny-llama", format, folder.path().join("out"));
        let stopped = write(&request, &|_, _| Err(Error::Interrupted));
        assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("a folder");
    fs::write(out.join(mlx::UNFINISHED), b"").expect("written");
    fs::write(out.join("model.safetensors"), b"half").expect("written");
    synth(&request("tiny-llama", Format::Mlx, out.clone()));
    assert!(Checkpoint::open(&out).is_ok() && !out.join(mlx::UNFINISHED).exists());
}

/// Logits of some tokens, with keys and values in f32.
fn logits(checkpoint: &Checkpoint) -> Vec<f32> {
    let kv = compute::memory::KvFormat::F32;
    let options = runtime::Options { context: 64, kv, ..runtime::Options::default() };
    let mut runner = runtime::Runner::load(checkpoint, &options, &|_, _| {}).expect("loads");
    let mut sequence = runner.sequence().expect("a sequence");
    let tokens: Vec<u32> = (0..24).map(|index| index * 61 % 4096).collect();
    let mut all = Vec::new();
    let row = |_: usize, logits: &[f32]| all.extend_from_slice(logits);
    runner.feed(&mut sequence, &tokens, model::Logits::All, row).expect("runs");
    all
}

/// Both formats answer alike: to the bit where converters change no order of sums, and nearly so where they do (the rotation
/// of Llama, the value heads of Qwen3.5).
#[test]
fn a_gguf_answers_as_its_twin() {
    for (like, is_same) in [
        ("tiny-qwen3", true),
        ("tiny-qwen3-moe", true),
        ("tiny-llama", false),
        ("tiny-qwen3.5", false),
        ("tiny-qwen3.5-moe", false),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let file = synth(&request(like, Format::Gguf, folder.path().join("model.gguf")));
        let twin = synth(&request(like, Format::Mlx, folder.path().join("model")));
        let [ours, theirs] =
            [&file, &twin].map(|path| logits(&Checkpoint::open(path).expect("opens")));
        if is_same {
            assert!(ours == theirs, "{like}");
            continue;
        }
        let mean = theirs.iter().sum::<f32>() / theirs.len() as f32;
        let variance = theirs.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / theirs.len() as f32;
        let errors = ours.iter().zip(&theirs).map(|(x, y)| (x - y).abs());
        let error = errors.fold(0.0, f32::max) / variance.sqrt();
        assert!(error < 2e-3, "{like}: {error} of a standard deviation");
    }
}

/// Both formats are read as one model: what GGUF says in its words is what config.json says in HF's.
#[test]
fn a_gguf_opens_as_the_model_that_its_twin_is() {
    for like in TINY {
        let folder = tempfile::tempdir().expect("a folder");
        let file = synth(&request(like, Format::Gguf, folder.path().join("model.gguf")));
        let twin = synth(&request(like, Format::Mlx, folder.path().join("model")));
        let [gguf, mlx] = [&file, &twin].map(|path| Checkpoint::open(path).expect("opens"));
        assert_eq!(gguf.warnings(), [], "{like}");
        let [ours, theirs] =
            [&gguf, &mlx].map(|checkpoint| model::arch::spec(checkpoint).expect(like));
        assert_eq!(ours.parameters(), theirs.parameters(), "{like}");
        let facts = |spec: &model::DecoderSpec| {
            let layers = spec.layers.iter().map(|layer| match &layer.mixer {
                model::MixerSpec::Attention(a) => format!("{:?} {}", a.shape, a.rope.rotary_dim),
                model::MixerSpec::Delta(d) => {
                    format!(
                        "{:?}",
                        [
                            d.shape.key_heads,
                            d.shape.value_heads,
                            d.shape.key_dim,
                            d.shape.value_dim,
                            d.shape.taps
                        ]
                    )
                }
            });
            let layers: Vec<String> = layers.collect();
            let ends = (spec.hidden, spec.vocab, spec.context, spec.eps, spec.head.is_some());
            (spec.model_type.clone(), ends, layers)
        };
        assert_eq!(facts(&ours), facts(&theirs), "{like}");
        assert_eq!(gguf.conversion().frequency_factors.is_some(), like == "tiny-llama");
        for (pair, (ours, theirs)) in frequencies(&ours).zip(frequencies(&theirs)).enumerate() {
            assert!((ours - theirs).abs() <= 1e-6 * theirs, "{like}: {pair}: {ours}, {theirs}");
        }
    }
}

/// The frequencies of the first layer that rotates.
fn frequencies(spec: &model::DecoderSpec) -> impl Iterator<Item = f32> {
    let rope = spec.layers.iter().find_map(|layer| match &layer.mixer {
        model::MixerSpec::Attention(attention) => Some(&attention.rope),
        model::MixerSpec::Delta(_) => None,
    });
    let rope = rope.expect("a rotation");
    let pairs = rope.rotary_dim / 2;
    let (mut cos, mut sin) = (vec![0.0; pairs], vec![0.0; pairs]);
    // At position 1 an angle is its frequency, which is at most one.
    rope.table(1, &mut cos, &mut sin);
    sin.into_iter().zip(cos).map(|(sin, cos): (f32, f32)| sin.atan2(cos))
}
