//! Pieces that were written to do harm, for places where chance would rarely find them.

use serde_json::{Value, json};

use super::draw::Draw;

/// Keys of a config.json that decide sizes.
pub(super) const SIZES: [&str; 40] = [
    "hidden_size",
    "head_dim",
    "global_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_global_key_value_heads",
    "num_kv_shared_layers",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "experts_per_token",
    "top_k_experts",
    "vocab_size",
    "vocab_size_per_layer_input",
    "hidden_size_per_layer_input",
    "max_position_embeddings",
    "sliding_window",
    "sliding_window_pattern",
    "max_window_layers",
    "full_attention_interval",
    "decoder_sparse_step",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "mtp_num_hidden_layers",
    "rope_theta",
    "rms_norm_eps",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "final_logit_softcapping",
    "rope_local_base_freq",
    "swiglu_limit",
    "eos_token_id",
    "original_max_position_embeddings",
];

/// Chat templates, or pieces of some.
pub(super) const TEMPLATES: [&str; 26] = [
    "{% for m in messages %}{{ m.content }}",
    "{{ messages[0]['content'] | nothing_like_it }}",
    "{% if %}",
    "{{ '\u{0}' }}{# never ends",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 9007199254740993 * 9007199254740993 }}",
    "{% set x = 'a' * 1000 %}{{ x }}",
    "{% include 'tokenizer.json' %}",
    "{% raw %}",
    "{{- ((((((((((1)))))))))) -}}",
    "<think></think>{{ enable_thinking }}<|im_start|><|im_end|>",
    "",
    "{{ 'x'|indent(10**10) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ ('x' * 2000).replace('x', 'y' * 2000).replace('y', 'z' * 2000) }}",
    "{{ range(1000000)|list|join('x' * 1000) }}",
    "{% set s = namespace(x='xx') %}{% for i in range(40) %}{% set s.x = s.x ~ s.x %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}{% endset %}",
    "{% set s = namespace(x=[1]) %}{% for i in range(400) %}{% set s.x = [s.x, s.x] %}{% endfor %}",
    "{{ [messages] * 100000000 }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{% if not add_generation_prompt %}{{ 'a b ' * 300000 }}{% endif %}",
    "{% for i in range(99999) %}{% if 'z' in 'x' * 99999 %}{% endif %}{% endfor %}",
];

/// Steps of a tokenizer.json, by section.
pub(super) fn section(draw: &mut Draw) -> (&'static str, Value) {
    match draw.below(5) {
        0 | 1 => ("normalizer", normalizer(draw)),
        2 => ("pre_tokenizer", pre_tokenizer(draw)),
        3 => ("post_processor", post_processor(draw)),
        _ => ("decoder", decoder(draw)),
    }
}

fn normalizer(draw: &mut Draw) -> Value {
    let charsmap = |map: &str| json!({"type": "Precompiled", "precompiled_charsmap": map});
    match draw.below(10) {
        0 => charsmap(draw.pick(&["AAAA", "AAAAAA==", "/////wAAAAA=", "", "*", "BAAAAAAAAAA="])),
        1 => {
            // A tree of words that lead anywhere.
            let letters = b"ABCDwxyz0189+/";
            let body: String = (0..128).map(|_| char::from(draw.pick(letters))).collect();
            charsmap(&format!("QAAAA{body}AA="))
        }
        2 => replace(&json!({"String": ""}), "a"),
        3 => replace(&json!({"Regex": draw.pick(&PATTERNS)}), draw.pick(&["", "a", "aa", "\u{0}"])),
        4 => sequence("normalizers", &vec![replace(&json!({"String": "a"}), "aa"); draw.below(80)]),
        5 => json!({"type": "Prepend", "prepend": "a".repeat(draw.below(200_000))}),
        6 => json!({"type": "Strip", "strip_left": true, "strip_right": true}),
        7 => {
            json!({"type": draw.pick(&["NFKD", "Nmt", "StripAccents", "Lowercase", "ByteLevel", "X"])})
        }
        8 => json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true}),
        _ => nested("Sequence", "normalizers", draw.pick(&[3, 11, 30, 120])),
    }
}

fn pre_tokenizer(draw: &mut Draw) -> Value {
    match draw.below(8) {
        0 => json!({"type": "FixedLength", "length": draw.pick(&[0_u64, 1, 1 << 40])}),
        1 => json!({"type": "Split", "pattern": {"Regex": draw.pick(&PATTERNS)},
            "behavior": draw.pick(&["Isolated", "Removed", "MergedWithPrevious", "Contiguous"]),
            "invert": draw.once_in(2)}),
        2 => {
            json!({"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": true})
        }
        3 => json!({"type": "Metaspace", "replacement": draw.pick(&["▁", "", "ab"]),
            "prepend_scheme": "always", "split": true}),
        4 => json!({"type": "CharDelimiterSplit", "delimiter": draw.pick(&["a", "", "ab"])}),
        5 => {
            let step = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
                "use_regex": true});
            sequence("pretokenizers", &vec![step; draw.below(40)])
        }
        6 => json!({"type": draw.pick(&["UnicodeScripts", "Whitespace", "BertPreTokenizer", "X"])}),
        _ => nested("Sequence", "pretokenizers", draw.pick(&[3, 11, 30, 120])),
    }
}

fn post_processor(draw: &mut Draw) -> Value {
    match draw.below(5) {
        0 => json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<gone>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {}}),
        1 => json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 4294967295_u32}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": vec![4294967295_u32; draw.below(3000)],
            "tokens": ["<s>"]}}}),
        2 => json!({"type": "RobertaProcessing", "sep": ["a", 4294967295_u32], "cls": ["b", 0],
            "trim_offsets": true, "add_prefix_space": true}),
        3 => json!({"type": "BertProcessing", "sep": ["", 0], "cls": ["b", 0]}),
        _ => nested("Sequence", "processors", draw.pick(&[3, 11, 30, 120])),
    }
}

fn decoder(draw: &mut Draw) -> Value {
    match draw.below(7) {
        0 => {
            json!({"type": "Strip", "content": " ", "start": 1_000_000_000, "stop": 1_000_000_000_000_u64})
        }
        1 => replace(&json!({"String": ""}), "b"),
        2 => json!({"type": "BPEDecoder", "suffix": ""}),
        3 => json!({"type": "WordPiece", "prefix": "a".repeat(draw.below(3000)), "cleanup": true}),
        4 => json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        5 => sequence("decoders", &vec![replace(&json!({"Regex": "."}), "aaaa"); draw.below(40)]),
        _ => nested("Sequence", "decoders", draw.pick(&[3, 11, 30, 120])),
    }
}

/// Models that break in ways of their own.
pub(super) fn model(draw: &mut Draw) -> Value {
    match draw.below(11) {
        0 => json!({"type": "Unigram", "unk_id": 5, "vocab": []}),
        1 => json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", -1.0]], "byte_fallback": true}),
        2 => {
            json!({"type": "Unigram", "unk_id": null, "vocab": [["", 0.0], ["a", -1e308], ["b", 1e308]]})
        }
        3 => {
            let long = "é".repeat(draw.below(200_000));
            json!({"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], [long, -1.0]]})
        }
        4 => json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "",
            "max_input_chars_per_word": 18446744073709551615_u64, "vocab": {}}),
        5 => json!({"type": "WordLevel", "unk_token": "<none>", "vocab": {"a": 4294967295_u32}}),
        6 => json!({"type": "BPE", "vocab": {"a": 0, "b": 4294967294_u32}, "merges": [["a", "b"]]}),
        7 => {
            json!({"type": "BPE", "continuing_subword_prefix": "##", "vocab": {"a": 0, "é": 1, "a\u{a9}": 2},
            "merges": [["a", "é"], ["a", "a"]]})
        }
        8 => json!({"type": "BPE", "dropout": 1.0, "unk_token": "none", "byte_fallback": true,
            "fuse_unk": true, "vocab": {}, "merges": []}),
        9 => {
            json!({"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": vec!["a a"; draw.below(3000)],
            "end_of_word_suffix": "a".repeat(draw.below(3000))})
        }
        _ => json!({"vocab": {"x": 3}, "merges": []}),
    }
}

/// Lists of added tokens.
pub(super) fn added(draw: &mut Draw) -> Value {
    let token = |id: u64, content: String| {
        json!({"id": id, "content": content, "single_word": true, "lstrip": true, "rstrip": true,
            "normalized": true, "special": true})
    };
    match draw.below(5) {
        0 => (0..draw.below(20_000) as u64).map(|id| token(id, format!("<{id}>"))).collect(),
        1 => json!([token(u64::from(u32::MAX), "<far>".to_owned())]),
        2 => json!([token(0, "a".repeat(70_000)), token(1, String::new())]),
        3 => json!([token(0, "<same>".to_owned()), token(1, "<same>".to_owned())]),
        _ => json!([token(0, " \u{0}".to_owned()), token(0, "e\u{301}".to_owned())]),
    }
}

const PATTERNS: [&str; 12] = [
    "",
    "a*",
    "(",
    "(a+)+$",
    "(?=(a|aa)+$)",
    "\\w{1000}{1000}{1000}",
    "(?=a)(\\p{L}{99999})",
    "(?<=a)b|",
    "\\b|$",
    "[[:alpha:]",
    "(((((((((((((((((((((a",
    "(?R)",
];

fn replace(pattern: &Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

fn sequence(name: &str, steps: &[Value]) -> Value {
    json!({"type": "Sequence", name: steps})
}

fn nested(kind: &str, name: &str, depth: usize) -> Value {
    (0..depth)
        .fold(json!({"type": kind, name: []}), |inner, _| json!({"type": kind, name: [inner]}))
}
