//! The memory plan: what is resident, how many slots the rest buys, and that advice, once followed, helps.

use std::collections::BTreeMap;
use std::path::Path;

use checkpoint::Checkpoint;
use checkpoint::write::{Declaration, SafetensorsWriter};
use compute::memory::KvFormat;
use model::{DecoderSpec, in_format};
use runtime::{Options, Plan, PlanRequest, Runner, Streaming};

use format::Dtype;

const PEBBLE: &str = "models/pebble";
const MIXED: &str = "testdata/models/qwen3_moe-mixed";

fn spec(model: &str) -> DecoderSpec {
    let folder = golden::repository(model);
    model::arch::spec(&Checkpoint::open(&folder).expect("checkpoint")).expect("spec")
}

/// A plan with nothing left to choose but the experts.
fn request(memory_bytes: u64) -> PlanRequest {
    PlanRequest {
        memory_bytes: Some(memory_bytes),
        context: Some(512),
        chunk: Some(128),
        ..PlanRequest::default()
    }
}

#[track_caller]
fn plan(spec: &DecoderSpec, request: &PlanRequest) -> Plan {
    let plan = Plan::new(spec, request).expect("plan");
    assert_eq!(plan.total_bytes, plan.rows.iter().map(|row| row.bytes).sum::<u64>());
    assert_eq!(plan.fits, plan.total_bytes <= plan.budget_bytes);
    assert_eq!(plan.fits, plan.hints.is_empty(), "{:?}", plan.hints);
    assert_eq!(plan.streaming.is_some(), plan.options.slots.is_some());
    plan
}

fn row(plan: &Plan, name: &str) -> u64 {
    plan.rows.iter().find(|row| row.name == name).map_or(0, |row| row.bytes)
}

/// Bytes of everything but the experts, of the experts, and of one slot of a model with one size of them.
fn sizes(spec: &DecoderSpec) -> (u64, u64, u64) {
    let all = plan(spec, &request(u64::MAX));
    let experts = row(&all, "routed experts");
    let one = plan(spec, &PlanRequest { expert_slots: Some(40), ..request(u64::MAX) });
    (all.total_bytes - experts, experts, row(&one, "expert slots") / 40)
}

#[test]
fn what_fits_is_resident() {
    for model in [PEBBLE, MIXED, "testdata/models/llama-4bit"] {
        let spec = spec(model);
        let most = plan(&spec, &request(u64::MAX));
        let exact = plan(&spec, &request(most.total_bytes));
        for plan in [most, exact] {
            assert!(plan.fits && plan.streaming.is_none(), "{model}: {plan:?}");
            assert_eq!(row(&plan, "routed experts"), spec.expert_bytes());
            assert_eq!(plan.would_stream_bytes, 0);
        }
    }
    // Unless it is asked for.
    let always = PlanRequest { streaming: Streaming::Always, ..request(u64::MAX) };
    let plan = plan(&spec(PEBBLE), &always);
    assert_eq!(plan.streaming.expect("slots").slots, 256);
}

#[test]
fn slots_fill_what_the_rest_leaves() {
    let spec = spec(PEBBLE);
    let (fixed, experts, slot) = sizes(&spec);
    let mut fewer = usize::MAX;
    for budget in [experts - 1, experts * 2 / 3, experts / 3, 40 * slot, 5 * slot, 4 * slot] {
        let plan = plan(&spec, &request(fixed + budget));
        let slots = plan.options.slots.as_ref().expect("slots");
        assert!(plan.fits, "{budget}: {plan:?}");
        assert_eq!(row(&plan, "expert slots"), slots.bytes);
        assert!(fixed + slots.bytes + slot > fixed + budget, "one more would fit: {plan:?}");
        assert!(slots.kept() <= fewer, "{budget}: {slots:?}");
        fewer = slots.kept();
        assert_eq!(plan.would_stream_bytes, experts - slots.bytes);
    }
    // One token's experts of one layer are the least, and keep nothing.
    assert_eq!(fewer, 0);
    assert!(!plan(&spec, &request(fixed + 4 * slot - 1)).fits);
}

#[test]
fn expectations_follow_the_slots() {
    let spec = spec(PEBBLE);
    // A token uses 4 of 32 experts in each of 8 layers.
    let one_token: u64 = 32 * spec.expert_bytes() / 256;
    let mut last = [0.0; 2];
    for slots in [4, 30, 48, 80, 128, 200, 290] {
        let request = PlanRequest { expert_slots: Some(slots), ..request(u64::MAX) };
        let streaming = plan(&spec, &request).streaming.expect("slots");
        assert!(streaming.slots + streaming.staging_slots <= slots);
        let [even, published] = streaming.hit_rate;
        assert!(even <= published && even >= last[0] && published >= last[1], "{streaming:?}");
        // Even fewer than one token's are there when they are wanted again.
        assert_eq!(even > 0.0, streaming.slots > 0, "{streaming:?}");
        for (bytes, rate) in streaming.read_bytes_per_token.iter().zip(streaming.hit_rate) {
            let expect = (1.0 - rate) * one_token as f64;
            assert!((*bytes as f64 - expect).abs() < 2.0, "{streaming:?}");
        }
        last = streaming.hit_rate;
    }
    assert_eq!(last, [1.0, 1.0]);
}

#[test]
fn too_few_slots_are_refused() {
    #[track_caller]
    fn check(model: &str, slots: usize, expect: &str) {
        let request = PlanRequest { expert_slots: Some(slots), ..request(u64::MAX) };
        let error = Plan::new(&spec(model), &request).expect_err("too few").to_string();
        assert!(error.starts_with(expect), "{error}");
    }
    check(PEBBLE, 3, "3 expert slots are too few: a token needs 4");
    // Two sizes of experts, two of each at once.
    check(MIXED, 3, "3 expert slots are too few: a token needs 4");
}

#[test]
fn a_mixed_model_has_slots_of_each_size() {
    let spec = spec(MIXED);
    let resident = plan(&spec, &request(u64::MAX));
    let fixed = resident.total_bytes - spec.expert_bytes();
    let least = PlanRequest { expert_slots: Some(4), ..request(u64::MAX) };
    let least = row(&plan(&spec, &least), "expert slots");
    for left in [least, least + 20_000, spec.expert_bytes() - 1] {
        let plan = plan(&spec, &request(fixed + left));
        assert!(plan.fits, "{left}: {plan:?}");
        let slots = plan.options.slots.expect("slots");
        assert_eq!(slots.classes.len(), 2);
        assert!(slots.classes.iter().all(|class| class.kept + class.staging >= 2), "{slots:?}");
        assert!(slots.bytes <= left);
    }
    assert!(!plan(&spec, &request(fixed + least - 1)).fits);
}

#[test]
fn a_streamed_model_leaves_most_of_the_memory_to_its_slots() {
    let spec = spec(PEBBLE);
    let (mut context, mut chunk) = (0, 0);
    // From hardly enough to what would hold it all.
    for mega in [230, 240, 260, 300, 400, 600, 1000, 2000] {
        let request = PlanRequest {
            memory_bytes: Some(mega << 20),
            streaming: Streaming::Always,
            ..PlanRequest::default()
        };
        let plan = plan(&spec, &request);
        if !plan.fits {
            continue;
        }
        let rest =
            plan.budget_bytes - row(&plan, "weights every token uses") - row(&plan, "program");
        let options = &plan.options;
        assert!(row(&plan, "keys and values") <= rest / 8 + (1 << 20) || options.context == 2048);
        assert!(row(&plan, "activations") <= rest / 8 || options.chunk == 64, "{plan:?}");
        assert!(options.context >= context && options.chunk >= chunk, "{mega}: {options:?}");
        (context, chunk) = (options.context, options.chunk);
    }
    assert_eq!((context, chunk), (8192, 2048));
}

/// A request changed as a hint says; `None` for one that is not an option of a request.
fn follow(request: &PlanRequest, hint: &str) -> Option<PlanRequest> {
    let mut words = hint.split(' ');
    let (option, value) = (words.next()?, words.next()?);
    let mut request = *request;
    match option {
        "--context" => request.context = Some(value.parse().expect("a number")),
        "--memory" => {
            let (number, unit) = value.split_at(value.len() - 1);
            let unit = if unit == "G" { 1 << 30 } else { 1 << 20 };
            request.memory_bytes = Some(number.parse::<u64>().expect("a number") * unit);
        }
        "--stream-experts" => {
            assert_eq!(value, "auto");
            request.streaming = Streaming::Auto;
        }
        "--expert-cache" => {
            let mega: u64 = value.strip_suffix('M').expect("a size").parse().expect("a number");
            request.expert_slots = None;
            request.expert_cache_bytes = Some(mega << 20);
        }
        _ => return None,
    }
    Some(request)
}

/// Every hint of a plan that does not fit makes it fit, and these options are among them.
#[track_caller]
fn check_hints(spec: &DecoderSpec, request: &PlanRequest, expect: &[&str]) {
    let refused = plan(spec, request);
    assert!(!refused.fits, "{refused:?}");
    let options: Vec<&str> =
        refused.hints.iter().map(|hint| hint.split(' ').next().expect("a word")).collect();
    assert_eq!(options, expect, "{:?}", refused.hints);
    for hint in &refused.hints {
        if let Some(followed) = follow(request, hint) {
            let plan = plan(spec, &followed);
            assert!(plan.fits, "{hint:?}: {} of {}", plan.total_bytes, plan.budget_bytes);
        } else {
            // Fewer experts are a property of the spec.
            let fewer = hint.strip_prefix("--experts-per-token ").expect("a known option");
            let mut spec = spec.clone();
            let fewer = fewer.split(' ').next().expect("a number").parse().expect("a number");
            spec.limit_experts_per_token(fewer);
            assert!(plan(&spec, request).fits, "{hint:?}");
        }
    }
}

#[test]
fn advice_helps() {
    let spec = spec(PEBBLE);
    let (fixed, experts, slot) = sizes(&spec);
    // Too long a context.
    let long = PlanRequest { context: Some(8192), ..request(fixed + 4 * slot) };
    check_hints(&spec, &long, &["--context", "--memory"]);
    // Less than the weights every token uses.
    check_hints(&spec, &request(1 << 20), &["--memory"]);
    check_hints(
        &spec,
        &PlanRequest { context: None, chunk: None, ..request(1 << 20) },
        &["--memory"],
    );
    // Room for three experts where a token wants four.
    check_hints(&spec, &request(fixed + 3 * slot), &["--memory", "--experts-per-token"]);
    // Experts that must be in memory and would not have to.
    let never = PlanRequest { streaming: Streaming::Never, ..request(fixed + experts / 2) };
    check_hints(&spec, &never, &["--memory", "--stream-experts"]);
    // They would not fit on the disk either.
    let never = PlanRequest { streaming: Streaming::Never, ..request(fixed / 2) };
    check_hints(&spec, &never, &["--memory"]);
    // More slots than there is room for.
    let many = PlanRequest { expert_slots: Some(200), ..request(fixed + 60 * slot) };
    check_hints(&spec, &many, &["--memory", "--expert-cache"]);
    let large = PlanRequest { expert_cache_bytes: Some(1 << 24), ..request(fixed + 60 * slot) };
    check_hints(&spec, &large, &["--memory", "--expert-cache"]);
    // Several sequences share the positions.
    let several = PlanRequest { sequences: Some(3), ..request(u64::MAX) };
    let enough = plan(&spec, &several).total_bytes - experts + 4 * slot;
    let several = PlanRequest { context: Some(8192), memory_bytes: Some(enough), ..several };
    check_hints(&spec, &several, &["--context", "--memory"]);
    // A context that would have to be none at all.
    let none = PlanRequest { context: Some(1024), ..request(fixed - (2 << 20) + 4 * slot) };
    check_hints(&spec, &none, &["--memory"]);
}

#[test]
fn too_small_a_cache_is_refused() {
    for model in [PEBBLE, MIXED] {
        let request = PlanRequest { expert_cache_bytes: Some(9000), ..request(u64::MAX) };
        let error = Plan::new(&spec(model), &request).expect_err("too few").to_string();
        assert!(error.contains("9.0 kB for experts is too little: a token needs 4"), "{error}");
    }
}

#[test]
fn each_thread_has_its_memory() {
    let spec = spec(PEBBLE);
    let with = |threads| {
        let request = PlanRequest { threads: Some(threads), ..request(u64::MAX) };
        let plan = plan(&spec, &request);
        assert_eq!(plan.options.threads, threads);
        row(&plan, "activations")
    };
    assert_eq!(with(9) - with(1), 4 * (with(3) - with(1)));
    assert!(with(3) > with(1));
}

/// A plan for a server.
fn serving(memory_bytes: u64, context: usize) -> PlanRequest {
    let context = Some(context);
    PlanRequest { serving: true, sequences: Some(8), context, ..request(memory_bytes) }
}

/// What the rows say is what is mapped.
#[track_caller]
fn check_mapped(model: &str, plan: &Plan) {
    let folder = golden::repository(model);
    let checkpoint = Checkpoint::open(&folder).expect("checkpoint");
    let options = Options { slots: None, ..plan.options.clone() };
    let runner = Runner::load(&checkpoint, &options, &|_, _| {}).expect("model");
    let rows = ["keys and values", "recurrent state", "prefix cache"].map(|name| row(plan, name));
    assert_eq!(runner.memory().bytes() as u64, rows.iter().sum::<u64>(), "{model}: {plan:?}");
}

#[test]
fn a_server_shares_its_positions() {
    for model in [PEBBLE, "testdata/models/llama-4bit", "testdata/models/mistral-4bit"] {
        let spec = spec(model);
        // With all the memory there is, as many as all sequences could use.
        let most = plan(&spec, &serving(u64::MAX, 2048));
        assert_eq!(most.options.pool_positions(), 8 * 2048);
        // What cannot be rewound has checkpoints.
        let is_rewindable = spec.layout(&in_format(KvFormat::F16)).expect("layout").is_rewindable();
        assert_eq!(is_rewindable, model.contains("llama"));
        assert_eq!(most.options.checkpoints, if is_rewindable { 0 } else { 64 });
        assert_eq!(row(&most, "prefix cache") > 0, !is_rewindable);
        check_mapped(model, &most);

        let (mut pool, mut checkpoints) = (8 * 2048, 64);
        let mut fitting = 0;
        for percent in (10..100).rev() {
            let request = serving(most.total_bytes * percent / 100, 2048);
            let plan = plan(&spec, &PlanRequest { streaming: Streaming::Never, ..request });
            let options = &plan.options;
            let positions = options.pool_positions();
            assert!((2048..=pool).contains(&positions) && options.checkpoints <= checkpoints);
            (pool, checkpoints) = (positions, options.checkpoints);
            if !plan.fits {
                break;
            }
            fitting += 1;
            let state = row(&plan, "keys and values") + row(&plan, "recurrent state");
            // Requests come last: they have what these leave.
            let state = state + row(&plan, "prefix cache") + row(&plan, "requests");
            let rest = plan.budget_bytes - (plan.total_bytes - state);
            assert!(options.checkpoints <= 4 || row(&plan, "prefix cache") <= rest / 8, "{plan:?}");
        }
        assert!(fitting > 0, "{model}");
        check_mapped(model, &plan(&spec, &serving(most.total_bytes * 9 / 10, 2048)));
    }
}

#[test]
fn requests_have_their_share_and_never_less_than_fills_the_context() {
    let spec = spec(PEBBLE);
    let requests = |request: &PlanRequest| plan(&spec, request).request_bytes();
    assert_eq!(requests(&serving(1 << 20, 2048)), (20 << 20) + (2048 << 10));
    assert_eq!(requests(&serving(400 << 20, 2048)), (32 << 20) + (2048 << 10));
    assert_eq!(requests(&serving(2 << 30, 2048)), 128 << 20);
    assert_eq!(requests(&serving(64 << 30, 2048)), 512 << 20);
    let streams = PlanRequest { streaming: Streaming::Always, ..serving(64 << 30, 2048) };
    assert_eq!(requests(&PlanRequest { memory_bytes: Some(8 << 30), ..streams }), 128 << 20);
    // One prompt at a time.
    assert_eq!(requests(&request(64 << 30)), (8 << 20) + 512 * 640);
}

#[test]
fn connections_are_planned_beside_their_requests() {
    let spec = spec(PEBBLE);
    let request = serving(2 << 30, 2048);
    let with = PlanRequest { connection_bytes: 16 << 20, ..request };
    let (without, with) = (plan(&spec, &request), plan(&spec, &with));
    assert_eq!(row(&with, "connections"), 16 << 20);
    assert_eq!(with.request_bytes(), without.request_bytes());
    assert_eq!(
        with.model_bytes() + row(&with, "requests"),
        without.model_bytes() + row(&without, "requests")
    );
}

#[test]
fn a_servers_pool_can_be_asked_for() {
    let spec = spec(PEBBLE);
    let asked =
        PlanRequest { pool_tokens: Some(5000), checkpoints: Some(7), ..serving(u64::MAX, 2048) };
    let exact = plan(&spec, &asked);
    assert_eq!((exact.options.pool_positions(), exact.options.checkpoints), (5000, 7));
    check_mapped(PEBBLE, &exact);
    // Never less than one sequence, and the same without the rest of a server's choices.
    let few = PlanRequest { pool_tokens: Some(1), serving: false, checkpoints: None, ..asked };
    let few = plan(&spec, &few);
    assert_eq!((few.options.pool_positions(), few.options.checkpoints), (2048, 0));
    check_mapped(PEBBLE, &few);
    // Advice helps here too.
    let tight = serving(few.total_bytes - spec.expert_bytes() + (16 << 20), 8192);
    check_hints(&spec, &tight, &["--context", "--memory"]);
}

#[test]
fn a_server_that_streams_leaves_most_to_its_slots() {
    let spec = spec(PEBBLE);
    for mega in [300, 400, 600, 1000] {
        let request = PlanRequest {
            memory_bytes: Some(mega << 20),
            sequences: Some(8),
            streaming: Streaming::Always,
            serving: true,
            ..PlanRequest::default()
        };
        let plan = plan(&spec, &request);
        assert!(plan.fits && plan.options.checkpoints >= 4, "{plan:?}");
        let rest =
            plan.budget_bytes - row(&plan, "weights every token uses") - row(&plan, "program");
        let one = plan.options.pool_positions() == plan.options.context;
        assert!(row(&plan, "keys and values") <= rest / 8 + (1 << 20) || one, "{plan:?}");
        assert!(row(&plan, "prefix cache") <= rest / 8 || plan.options.checkpoints == 4);
        check_mapped(PEBBLE, &plan);
    }
}

/// Gemma 4 26B-A4B as `mlx-community` publishes it, as a file of holes: headers and sizes are real, and it takes no
/// space. Dense layers and routers have `dense_bits`, everything else four, in groups of 64.
fn published_gemma(folder: &Path, dense_bits: usize) -> DecoderSpec {
    let (hidden, layers, experts, width) = (2816, 30, 128, 704);
    let mut tensors = Vec::new();
    let mut vector = |name: &str, len: usize| {
        tensors.push(Declaration::new(format!("language_model.model.{name}"), Dtype::BF16, &[len]));
    };
    vector("norm.weight", hidden);
    let mut matrices: Vec<(String, Vec<usize>, usize)> =
        vec![("embed_tokens".to_owned(), vec![262_144, hidden], 4)];
    for layer in 0..layers {
        let global = (layer + 1) % 6 == 0;
        let (kv_heads, head_dim) = if global { (2, 512) } else { (8, 256) };
        let path = format!("layers.{layer}");
        for norm in ["input", "post_attention", "pre_feedforward", "post_feedforward"] {
            vector(&format!("{path}.{norm}_layernorm.weight"), hidden);
        }
        for norm in ["post_feedforward_layernorm_1", "post_feedforward_layernorm_2"] {
            vector(&format!("{path}.{norm}.weight"), hidden);
        }
        vector(&format!("{path}.pre_feedforward_layernorm_2.weight"), hidden);
        vector(&format!("{path}.layer_scalar"), 1);
        vector(&format!("{path}.router.scale"), hidden);
        vector(&format!("{path}.router.per_expert_scale"), experts);
        for norm in ["q_norm", "k_norm"] {
            vector(&format!("{path}.self_attn.{norm}.weight"), head_dim);
        }
        let mut matrix = |name: &str, shape: &[usize], bits: usize| {
            matrices.push((format!("{path}.{name}"), shape.to_vec(), bits));
        };
        matrix("self_attn.q_proj", &[16 * head_dim, hidden], 4);
        matrix("self_attn.k_proj", &[kv_heads * head_dim, hidden], 4);
        if !global {
            matrix("self_attn.v_proj", &[kv_heads * head_dim, hidden], 4);
        }
        matrix("self_attn.o_proj", &[hidden, 16 * head_dim], 4);
        matrix("mlp.gate_proj", &[2112, hidden], dense_bits);
        matrix("mlp.up_proj", &[2112, hidden], dense_bits);
        matrix("mlp.down_proj", &[hidden, 2112], dense_bits);
        matrix("router.proj", &[experts, hidden], dense_bits);
        matrix("experts.switch_glu.gate_proj", &[experts, width, hidden], 4);
        matrix("experts.switch_glu.up_proj", &[experts, width, hidden], 4);
        matrix("experts.switch_glu.down_proj", &[experts, hidden, width], 4);
    }
    for (name, mut shape, bits) in matrices {
        let last = shape.len() - 1;
        let columns = shape[last];
        let mut part = |part: &str, dtype: Dtype, columns: usize| {
            shape[last] = columns;
            let name = format!("language_model.model.{name}.{part}");
            tensors.push(Declaration::new(name, dtype, &shape));
        };
        part("weight", Dtype::U32, columns * bits / 32);
        part("scales", Dtype::BF16, columns / 64);
        part("biases", Dtype::BF16, columns / 64);
    }
    let file = std::fs::File::create(folder.join("model.safetensors")).expect("a file");
    SafetensorsWriter::new(&file, &tensors, &BTreeMap::new()).expect("a header");
    let header = file.metadata().expect("a file").len();
    let bytes = |t: &Declaration| t.dtype.tensor_bytes(&t.shape).expect("a size");
    file.set_len(header + tensors.iter().map(bytes).sum::<u64>()).expect("a sparse file");
    let config = r#"{
        "model_type": "gemma4", "tie_word_embeddings": true, "quantization": { "group_size": 64, "bits": 4 },
        "text_config": {
            "model_type": "gemma4_text", "hidden_size": 2816, "num_hidden_layers": 30, "vocab_size": 262144,
            "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
            "head_dim": 256, "global_head_dim": 512, "attention_k_eq_v": true, "sliding_window": 1024,
            "intermediate_size": 2112, "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8,
            "moe_intermediate_size": 704, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
            "final_logit_softcapping": 30.0, "max_position_embeddings": 262144
        }
    }"#;
    std::fs::write(folder.join("config.json"), config).expect("written");
    model::arch::spec(&Checkpoint::open(folder).expect("checkpoint")).expect("spec")
}

#[test]
fn embeddings_of_layers_stay_on_the_disk() {
    let spec = spec("testdata/models/gemma4_e-4bit");
    let per_layer = spec.per_layer.as_ref().expect("per-layer embeddings");
    let plan = plan(&spec, &request(u64::MAX));
    let row = plan.rows.iter().find(|row| row.name == "embeddings of layers").expect("a row");
    assert_eq!(row.bytes, 0);
    assert!(row.note.ends_with(&format!("{} bytes a token are read", per_layer.row_bytes())));
    // 256 rows of five layers of 64 values, in four bits with a scale and a bias for each 64.
    assert_eq!(per_layer.row_bytes(), 5 * (32 + 4));
    assert_eq!(per_layer.table.bytes(), 256 * per_layer.row_bytes());
    assert!(spec.bytes_per_token() < spec.resident_bytes() + per_layer.table.bytes());
}

#[test]
fn gemma_4_26b_a4b_takes_what_its_shape_says() {
    let giga = |bytes: u64| (bytes as f64 / 1e7).round() / 100.0;
    for (dense_bits, resident) in [(8, 1.62), (4, 1.35)] {
        let folder = tempfile::tempdir().expect("a folder");
        let spec = published_gemma(folder.path(), dense_bits);
        assert_eq!(giga(spec.expert_bytes()), 12.85);
        assert_eq!(giga(spec.resident_bytes()), resident);
        let layout = spec.layout(&in_format(KvFormat::F16)).expect("layout");
        assert_eq!(layout.kv_bytes_per_token(), 20_480);
        assert_eq!(layout.window_bytes(), 209_715_200);
        let plan = plan(&spec, &PlanRequest { context: Some(32_768), ..request(24 << 30) });
        assert!(plan.fits && plan.streaming.is_none());
        let kv = plan.rows.iter().find(|row| row.name == "keys and values").expect("a row");
        assert!(kv.note.ends_with("20480 bytes each, windows of 209.7 MB"), "{}", kv.note);
        // Pages, and the rows of a step, are what it takes besides.
        let exact = 32_768 * 20_480 + 209_715_200;
        assert!((exact..exact + 100_000_000).contains(&kv.bytes), "{}", kv.bytes);
        let (all, active) = spec.parameters();
        assert_eq!((all / 100_000_000, active / 100_000_000), (252, 38));
    }
}
