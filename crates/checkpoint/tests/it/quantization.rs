//! Bits and groups follow from shapes and inputs; config.json is only ever contradicted.

use checkpoint::write::Declaration;
use proptest::prelude::*;

use crate::support::{CONFIG, declare, open};

use format::{Dtype, Encoding, Float};

fn module(rows: usize, packed: usize, groups: usize, scale: Dtype) -> Vec<Declaration> {
    let mut tensors = vec![
        declare("m.weight", Dtype::U32, &[rows, packed]),
        declare("m.scales", scale, &[rows, groups]),
    ];
    if scale != Dtype::U8 {
        tensors.push(declare("m.biases", scale, &[rows, groups]));
    }
    tensors
}

/// 16 words and 2 scales a row are three different things; the number of inputs tells which.
#[test]
fn inputs_resolve_bits_times_group() {
    let checkpoint = open(CONFIG, &module(4, 16, 2, Dtype::BF16));
    for (in_features, bits, group) in [(128, 4, 64), (64, 8, 32), (256, 2, 128)] {
        let linear = checkpoint.linear("m", None, 4, in_features).unwrap();
        assert_eq!(linear.encoding, Encoding::Affine { bits, group, scale: Float::Bf16 });
    }
    let checkpoint = open(CONFIG, &module(4, 16, 4, Dtype::U8));
    assert_eq!(checkpoint.linear("m", None, 4, 128).unwrap().encoding, Encoding::Mxfp4);
    assert_eq!(checkpoint.linear("m", None, 4, 64).unwrap_err().to_string(), illegal(64, 4));
}

fn illegal(in_features: usize, groups: usize) -> String {
    format!(
        "<memory>/model.safetensors: tensor \"m.weight\": 16 words and {groups} scales per row of \
         {in_features} inputs: 8 bits in groups of 16 with U8 scales, without biases, is no known \
         quantization"
    )
}

proptest! {
    #[test]
    fn every_affine_pair_is_found(
        bits in prop::sample::select(vec![2_u8, 3, 4, 5, 6, 8]),
        group in prop::sample::select(vec![32_usize, 64, 128]),
        scale in prop::sample::select(vec![Dtype::F16, Dtype::BF16, Dtype::F32]),
        groups in 1_usize..6,
        rows in 1_usize..4,
    ) {
        let in_features = group * groups;
        let packed = in_features * usize::from(bits) / 32;
        let checkpoint = open(CONFIG, &module(rows, packed, groups, scale));
        let linear = checkpoint.linear("m", None, rows, in_features).unwrap();
        let scale = Float::of(scale).unwrap();
        prop_assert_eq!(linear.encoding, Encoding::Affine { bits, group, scale });
        prop_assert_eq!(linear.bytes(), linear.encoding.part_bytes(rows, in_features).iter().sum::<u64>());
        prop_assert_eq!(linear.bytes(), linear.slice(0).bytes());
    }

    #[test]
    fn any_shapes_are_found_or_refused(
        packed in 0_usize..40,
        groups in 0_usize..10,
        in_features in 0_usize..300,
        scale in prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::I32]),
    ) {
        let checkpoint = open(CONFIG, &module(2, packed, groups, scale));
        if let Ok(linear) = checkpoint.linear("m", None, 2, in_features) {
            let [weight, scales, _] = linear.encoding.part_bytes(2, in_features);
            prop_assert_eq!(weight, linear.weight.len_bytes);
            prop_assert_eq!(Some(scales), linear.scales.map(|scales| scales.len_bytes));
        }
    }
}

#[test]
fn floating_modes_follow_from_bits_and_group() {
    for (packed, groups, encoding) in
        [(16, 4, Encoding::Mxfp4), (16, 8, Encoding::Nvfp4), (32, 4, Encoding::Mxfp8)]
    {
        let checkpoint = open(CONFIG, &module(2, packed, groups, Dtype::U8));
        assert_eq!(checkpoint.linear("m", None, 2, 128).unwrap().encoding, encoding);
    }
}

#[track_caller]
fn check_warning(quantization: &str, expected: &[&str]) {
    let config = format!(r#"{{"model_type": "x", "quantization": {quantization}}}"#);
    let mut tensors = Vec::new();
    for mut tensor in module(2, 24, 2, Dtype::F32) {
        tensor.name.insert_str(0, "language_model.model.layers.3.");
        tensors.push(tensor);
    }
    tensors.push(declare("lm_head.weight", Dtype::F32, &[2, 128]));
    let checkpoint = open(&config, &tensors);
    for _ in 0..2 {
        checkpoint.linear("language_model.model.layers.3.m", None, 2, 128).unwrap();
        checkpoint.linear("lm_head", None, 2, 128).unwrap();
    }
    let warnings: Vec<String> = checkpoint.warnings().iter().map(ToString::to_string).collect();
    assert_eq!(warnings, expected);
}

#[test]
fn a_configuration_that_contradicts_the_shapes_is_a_warning_once() {
    let found = "tensor \"language_model.model.layers.3.m.weight\" is \
                 affine 6-bit group 64 (F32 scales), config.json says ";
    let four = format!("{found}affine 4-bit group 64");
    check_warning(r#"{"bits": 6, "group_size": 64}"#, &[]);
    check_warning(r#"{"bits": 4, "group_size": 64}"#, &[&four]);
    check_warning(r#"{"mode": "mxfp4"}"#, &[&format!("{found}mxfp4")]);
    // An exception, whatever prefix it was written for.
    for path in ["model.layers.3.m", "language_model.model.layers.3.m", "layers.3.m"] {
        let exception = format!(r#"{{"bits": 4, "{path}": {{"bits": 6, "group_size": 64}}}}"#);
        check_warning(&exception, &[]);
    }
    check_warning(r#"{"bits": 4, "model.layers.2.m": {"bits": 6}}"#, &[&four]);
    check_warning(r#"{"bits": 6, "m": {"bits": 4}, "layers.3.m": {"bits": 6}}"#, &[]);
    check_warning(r#"{"bits": 6, "layers.3.m": false}"#, &[&format!("{found}not quantized")]);
    check_warning(r#"{"bits": 6, "layers.3.m": true}"#, &[]);
    check_warning(
        r#"{"bits": 6, "lm_head": {"bits": 8, "group_size": 32}}"#,
        &["tensor \"lm_head.weight\" is f32, config.json says affine 8-bit group 32"],
    );
    check_warning(r#"{"bits": 6, "lm_head": false}"#, &[]);
}
