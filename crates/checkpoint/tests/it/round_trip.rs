//! What is written is read back, by us and by the reference library; and the other way round.

use std::collections::{BTreeMap, BTreeSet};

use checkpoint::Checkpoint;
use checkpoint::write::{Declaration, SafetensorsWriter, header};
use half::{bf16, f16};
use proptest::prelude::*;

use crate::support::{CONFIG, counted_file, declare, files};

use format::Dtype;
use safetensors::SafeTensors;

fn any_declarations() -> impl Strategy<Value = Vec<Declaration>> {
    let shape = prop::collection::vec(0_usize..5, 0..4);
    let tensor = ("[a-z\"\\\\.é\u{1}]{1,12}", prop::sample::select(Dtype::ALL), shape);
    prop::collection::vec(tensor, 0..8).prop_map(|tensors| {
        let mut names = BTreeSet::new();
        tensors
            .into_iter()
            .map(|(name, dtype, shape)| declare(&name, dtype, &shape))
            .filter(|tensor| tensor.dtype.tensor_bytes(&tensor.shape).is_some())
            .filter(|tensor| names.insert(tensor.name.clone()))
            .collect()
    })
}

fn open(model: &[u8]) -> Checkpoint {
    let list = files(&[("config.json", CONFIG.as_bytes()), ("model.safetensors", model)]);
    Checkpoint::from_owned(list).unwrap()
}

proptest! {
    #[test]
    fn written_files_read_back(tensors in any_declarations(), cut in 1_usize..50) {
        let metadata = BTreeMap::from([("format".to_owned(), "mlx".to_owned())]);
        let mut writer = SafetensorsWriter::new(Vec::new(), &tensors, &metadata).unwrap();
        let mut contents = Vec::new();
        for (index, tensor) in tensors.iter().enumerate() {
            let len = tensor.dtype.tensor_bytes(&tensor.shape).unwrap() as usize;
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + index * 13) as u8).collect();
            // In pieces of any size: the file must not depend on how the stream is cut.
            bytes.chunks(cut).for_each(|piece| writer.write(&tensor.name, piece).unwrap());
            contents.push(bytes);
        }
        let model = writer.finish().unwrap();

        let checkpoint = open(&model);
        prop_assert_eq!(checkpoint.metadata("format"), Some("mlx"));
        prop_assert_eq!(checkpoint.tensors().len(), tensors.len());
        let reference = SafeTensors::deserialize(&model).unwrap();
        for (tensor, content) in tensors.iter().zip(&contents) {
            let found = checkpoint.require(&tensor.name, &tensor.shape).unwrap();
            prop_assert_eq!(found.dtype, tensor.dtype);
            let mut bytes = vec![0; content.len()];
            checkpoint.read(found, 0, &mut bytes).unwrap();
            prop_assert_eq!(&bytes, content);
            let half = content.len() / 2;
            checkpoint.read(found, half as u64, &mut bytes[half..]).unwrap();
            prop_assert_eq!(&bytes, content);
            let view = reference.tensor(&tensor.name).unwrap();
            prop_assert_eq!(view.data(), &content[..]);
            prop_assert_eq!(view.shape(), &tensor.shape[..]);
            prop_assert_eq!(view.dtype().to_string(), tensor.dtype.name());
        }
    }

    #[test]
    fn files_of_the_reference_library_read_back(values in prop::collection::vec(any::<f32>(), 1..40)) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let view = |shape: Vec<usize>| {
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, &bytes).unwrap()
        };
        let views = [("b", view(vec![values.len()])), ("a", view(vec![1, values.len()]))];
        let model = safetensors::serialize(views, None).unwrap();
        let checkpoint = open(&model);
        let read = checkpoint.read_f32(checkpoint.tensor("a").unwrap()).unwrap();
        prop_assert!(read.iter().zip(&values).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}

#[test]
fn halves_become_floats() {
    let values = [0.0, -1.5, 65504.0, 6.1e-5, f32::INFINITY];
    for dtype in [Dtype::F16, Dtype::BF16] {
        let tensors = [declare("a", dtype, &[values.len()])];
        let mut writer = SafetensorsWriter::new(Vec::new(), &tensors, &BTreeMap::new()).unwrap();
        for value in values {
            let (half, brain) = (f16::from_f32(value), bf16::from_f32(value));
            let bytes = if dtype == Dtype::F16 { half.to_le_bytes() } else { brain.to_le_bytes() };
            writer.write("a", &bytes).unwrap();
        }
        let checkpoint = open(&writer.finish().unwrap());
        let read = checkpoint.read_f32(checkpoint.tensor("a").unwrap()).unwrap();
        let expected = values.map(|value| match dtype {
            Dtype::F16 => f16::from_f32(value).to_f32(),
            _ => bf16::from_f32(value).to_f32(),
        });
        assert_eq!(read, expected);
    }
}

/// Longer than one conversion chunk, and not a multiple of it.
#[test]
fn long_tensors_are_converted_in_chunks() {
    let count = (1 << 19) + 3;
    let model = counted_file(&[declare("a", Dtype::BF16, &[count])]);
    let checkpoint = open(&model);
    let read = checkpoint.read_f32(checkpoint.tensor("a").unwrap()).unwrap();
    assert_eq!(read.len(), count);
    let data = &model[model.len() - 2 * count..];
    for at in [0, 1, (1 << 19) - 1, 1 << 19, count - 1] {
        let expected = bf16::from_le_bytes([data[2 * at], data[2 * at + 1]]).to_f32();
        assert_eq!(read[at].to_bits(), expected.to_bits(), "element {at}");
    }
}

#[track_caller]
fn check_refused(tensors: &[Declaration], writes: &[(&str, usize)], expected: &str) {
    let result = (|| {
        let mut writer = SafetensorsWriter::new(Vec::new(), tensors, &BTreeMap::new())?;
        for (name, count) in writes {
            writer.write(name, &vec![0; *count])?;
        }
        writer.finish().map(drop)
    })();
    assert_eq!(result.unwrap_err().to_string(), expected);
}

#[test]
fn the_writer_holds_its_caller_to_the_declaration() {
    let two = [declare("a", Dtype::U8, &[4]), declare("b", Dtype::U8, &[2])];
    check_refused(&two, &[("b", 2)], "bytes for tensor \"b\" while \"a\" is next");
    check_refused(&two, &[("a", 3), ("a", 2)], "tensor \"a\": declared 4 bytes, given 5");
    check_refused(&two, &[("a", 4), ("b", 1)], "tensor \"b\": declared 2 bytes, given 1");
    check_refused(
        &two,
        &[("a", 4), ("b", 2), ("b", 1)],
        "bytes for tensor \"b\" while \"the end\" is next",
    );
    let twice = [declare("a", Dtype::U8, &[4]), declare("a", Dtype::U8, &[2])];
    check_refused(&twice, &[], "cannot write \"a\": the name is taken");
    let reserved = [declare("__metadata__", Dtype::U8, &[4])];
    check_refused(&reserved, &[], "cannot write \"__metadata__\": the name is taken");
    let odd = [declare("a", Dtype::F4, &[3])];
    check_refused(&odd, &[], "cannot write \"a\": no whole number of bytes");
}

#[test]
fn data_begins_at_a_multiple_of_eight() {
    for len in 1..10 {
        let model = counted_file(&[declare(&"n".repeat(len), Dtype::U8, &[1])]);
        assert_eq!(model.len() % 8, 1);
    }
}

#[test]
fn data_begins_where_it_is_asked_to() {
    let tensors = [declare("a", Dtype::U8, &[5]), declare("padding", Dtype::U8, &[4091])];
    for alignment in [8, 64, 4096] {
        let mut file = header(&tensors, &BTreeMap::new(), alignment).unwrap();
        assert_eq!(file.len() as u64 % alignment, 0);
        file.extend([7; 4096]);
        SafeTensors::deserialize(&file).unwrap();
        let checkpoint = open(&file);
        assert_eq!(checkpoint.tensor("a").unwrap().offset % alignment, 0);
    }
}
