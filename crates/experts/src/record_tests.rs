//! Tests of `record.rs`.

use std::collections::BTreeMap;

use checkpoint::write::{Declaration, SafetensorsWriter};
use checkpoint::{Checkpoint, ExpertForm};
use compute::Expert;
use proptest::prelude::*;

use super::*;
use crate::device::{Access, Device, Files};

use format::Dtype;

fn layer(checkpoint: &Checkpoint, prefix: &str, sizes: [usize; 3]) -> LayerExperts {
    let [experts, hidden, intermediate] = sizes;
    let layout = ExpertLayout::find(checkpoint, prefix, experts, hidden, intermediate).unwrap();
    LayerExperts { layout, experts_per_token: 2 }
}

/// What holds of any record: its regions are in order, aligned and side by side in the slot, its pieces
/// are the regions, and what `read` brings through them is each part where the view says it is.
#[track_caller]
fn check(
    checkpoint: &Checkpoint,
    layer: &LayerExperts,
    expert: usize,
    mut read: impl FnMut(Region, &mut [u8]) -> usize,
) -> Record {
    let record = Record::new(layer, expert);
    let mut slot_bytes = 0;
    for region in &record.regions {
        assert_eq!(region.slot_offset, slot_bytes, "a hole or an overlap in the slot");
        assert!(region.offset.is_multiple_of(ALIGNMENT as u64) && region.len > 0, "{region:?}");
        assert_eq!(region.len, region.needed.next_multiple_of(ALIGNMENT), "{region:?}");
        slot_bytes += region.len;
    }
    assert_eq!(record.slot_bytes(), slot_bytes);
    for pair in record.regions.windows(2) {
        let end = pair[0].offset + pair[0].len as u64;
        assert!(pair[0].file != pair[1].file || end < pair[1].offset, "two that touch: {pair:?}");
    }
    // Pieces of a region follow each other and end where it ends.
    let mut pieces = record.pieces().collect::<Vec<_>>().into_iter();
    for region in &record.regions {
        let mut done = 0;
        while done < region.len {
            let piece = pieces.next().unwrap();
            assert_eq!(piece.file, region.file);
            assert_eq!(piece.offset, region.offset + done as u64);
            assert_eq!(piece.slot_offset, region.slot_offset + done);
            assert!(piece.len.is_multiple_of(ALIGNMENT) && piece.len <= PIECE_BYTES, "{piece:?}");
            assert!((1..=piece.len).contains(&piece.needed), "{piece:?}");
            done += piece.len;
            let needed = region.needed.min(done) - (done - piece.len);
            assert_eq!(piece.needed, needed, "{piece:?} of {region:?}");
        }
        assert_eq!(done, region.len);
    }
    assert_eq!(pieces.next(), None);
    assert_eq!(reads_of(layer, expert), record.pieces().collect::<Vec<_>>());

    let mut slot = vec![0xee; slot_bytes];
    for piece in record.pieces() {
        let came = read(piece, &mut slot[piece.slot_offset..][..piece.len]);
        assert!(came >= piece.needed, "{came} of {piece:?}");
    }
    let Expert { gate, up, down, biases, is_interleaved } = record.place.view(&slot);
    assert_eq!(is_interleaved, layer.layout.is_interleaved());
    for (projection, matrix) in Projection::ALL.into_iter().zip([gate, up, down]) {
        let slice = layer.layout.slice(expert, projection);
        assert_eq!((matrix.rows, matrix.cols), (slice.out_features, slice.in_features));
        let bias = biases[projection as usize];
        assert_eq!(bias.map(|bias| bias.float), slice.bias_float);
        let parts = [
            (Some(slice.weight), matrix.codes),
            (slice.scales, matrix.scales),
            (slice.biases, matrix.biases),
            (slice.bias, bias.map_or(&[][..], |bias| bias.bytes)),
        ];
        for (span, got) in parts {
            let mut want = vec![0; span.map_or(0, |span| span.len_bytes as usize)];
            if let Some(span) = span {
                checkpoint.read_span(span, &mut want).unwrap();
            }
            assert!(got == want, "{projection} of expert {expert}");
        }
    }
    record
}

#[test]
fn published_files_hold_each_part_where_the_view_says() {
    #[rustfmt::skip]
    let cases = [
        ("qwen3_5_moe-4bit", "language_model.model.layers", ExpertForm::Stacked, [8, 128, 64]),
        ("qwen3_moe-4bit-sharded", "model.layers", ExpertForm::Stacked, [8, 128, 64]),
        ("qwen3_moe-nvfp4", "model.layers", ExpertForm::Stacked, [8, 128, 64]),
        ("qwen3_5_moe-vl-bf16", "model.language_model.layers", ExpertForm::Fused, [8, 96, 32]),
        ("qwen3_moe-bf16", "model.layers", ExpertForm::Separate, [8, 96, 32]),
        ("mixtral-f32", "model.layers", ExpertForm::Separate, [4, 96, 32]),
        ("gpt_oss-published", "model.layers", ExpertForm::Fused, [4, 192, 64]),
        ("gpt_oss-mxfp4-q8", "model.layers", ExpertForm::Stacked, [4, 192, 64]),
    ];
    for (model, prefix, form, sizes) in cases {
        let checkpoint = Checkpoint::open(&golden::model(model)).unwrap();
        let files = Files::open(&checkpoint, Access::Buffered).unwrap();
        for index in 0..2 {
            let layer = layer(&checkpoint, &format!("{prefix}.{index}"), sizes);
            assert_eq!(layer.layout.form(), form, "{model}");
            for expert in 0..sizes[0] {
                check(&checkpoint, &layer, expert, |region, out| {
                    files.read(region.file, region.offset, out).unwrap()
                });
            }
        }
    }
}

/// A file of experts in some form with tensors of `gaps` bytes between their tensors.
fn write(form: ExpertForm, sizes: [usize; 3], gaps: &[usize]) -> Vec<u8> {
    let [experts, hidden, intermediate] = sizes;
    let stack = |name: &str, rows: usize, columns: usize| {
        Declaration::new(format!("l.mlp.experts.{name}"), Dtype::BF16, &[experts, rows, columns])
    };
    let mut tensors = match form {
        ExpertForm::Stacked => vec![
            stack("gate_proj.weight", intermediate, hidden),
            stack("down_proj.weight", hidden, intermediate),
            stack("up_proj.weight", intermediate, hidden),
        ],
        ExpertForm::Fused => vec![
            stack("gate_up_proj", 2 * intermediate, hidden),
            stack("down_proj", hidden, intermediate),
        ],
        ExpertForm::Separate => (0..experts)
            .flat_map(|expert| {
                let one = |name: &str, rows, columns| {
                    let name = format!("l.mlp.experts.{expert}.{name}_proj.weight");
                    Declaration::new(name, Dtype::BF16, &[rows, columns])
                };
                [
                    one("down", hidden, intermediate),
                    one("gate", intermediate, hidden),
                    one("up", intermediate, hidden),
                ]
            })
            .collect(),
    };
    for (index, &gap) in gaps.iter().enumerate() {
        let filler = Declaration::new(format!("gap.{index}"), Dtype::U8, &[gap]);
        tensors.insert((2 * index).min(tensors.len()), filler);
    }
    let mut writer = SafetensorsWriter::new(Vec::new(), &tensors, &BTreeMap::new()).unwrap();
    let mut state = 1_u64;
    for tensor in &tensors {
        let elements: usize = tensor.shape.iter().product();
        let bytes = (0..elements * tensor.dtype.unit().1).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        writer.write(&tensor.name, &bytes.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap()
}

/// Checks all experts of a file in memory; their records.
#[track_caller]
fn check_file(form: ExpertForm, sizes: [usize; 3], gaps: &[usize]) -> Vec<Record> {
    let file = write(form, sizes, gaps);
    let files = [
        ("config.json", br#"{"model_type": "any"}"#.to_vec()),
        ("model.safetensors", file.clone()),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes));
    let checkpoint = Checkpoint::from_owned(files.into()).unwrap();
    let layer = layer(&checkpoint, "l", sizes);
    assert_eq!(layer.layout.form(), form);
    let read = |region: Region, out: &mut [u8]| {
        let left = &file[file.len().min(region.offset as usize)..];
        let count = left.len().min(out.len());
        out[..count].copy_from_slice(&left[..count]);
        count
    };
    (0..sizes[0]).map(|expert| check(&checkpoint, &layer, expert, read)).collect()
}

proptest! {
    #[test]
    fn any_offset_will_do(
        form in prop::sample::select(vec![
            ExpertForm::Stacked, ExpertForm::Fused, ExpertForm::Separate,
        ]),
        experts in 1_usize..5,
        hidden in 1_usize..120,
        intermediate in 1_usize..120,
        gaps in prop::collection::vec(1_usize..9000, 0..6),
    ) {
        check_file(form, [experts, hidden, intermediate], &gaps);
    }
}

#[test]
fn parts_side_by_side_are_one_region() {
    // Down, gate and up of an expert follow each other; the file ends with the last.
    for record in check_file(ExpertForm::Separate, [3, 100, 90], &[777]) {
        assert_eq!(record.regions.len(), 1);
    }
    // Gate and up do, and down lies elsewhere.
    for record in check_file(ExpertForm::Fused, [3, 100, 90], &[777]) {
        assert_eq!(record.regions.len(), 2);
    }
    for record in check_file(ExpertForm::Stacked, [3, 100, 90], &[777]) {
        assert_eq!(record.regions.len(), 3);
    }
}

#[test]
fn a_large_region_is_read_in_pieces() {
    // 3 · 2 · 1000 · 900 bytes: more than five megabytes side by side.
    let records = check_file(ExpertForm::Separate, [2, 1000, 900], &[4001]);
    for record in records {
        assert_eq!(record.regions.len(), 1);
        let lens: Vec<usize> = record.pieces().map(|piece| piece.len).collect();
        assert_eq!(lens.len(), 6);
        let (shortest, longest) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
        assert!(longest - shortest <= 6 * ALIGNMENT, "of about the same length: {lens:?}");
    }
}
