//! Expansion against an independent decoder, by digests, and on every instruction set.

use std::collections::HashMap;

use format::Encoding;

use super::super::tests::{Random, tame};
use super::*;
use crate::cpu::activation::testing::isas;

/// What `testdata/blocks/make.py` wrote.
const VALUES: &str = include_str!("../../../../../../testdata/blocks/values.txt");

/// Blocks of each digest.
const BLOCKS: usize = 256;

/// FNV-1a, 64 bits.
fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |digest, byte| {
        (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn values_are_those_of_the_reference_decoder() {
    let expect: HashMap<&str, &str> =
        VALUES.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(expect.len(), BlockFormat::ALL.len());
    for &format in BlockFormat::ALL {
        let mut random = Random(u64::from(format.id()));
        let mut blocks: Vec<u8> =
            (0..BLOCKS * format.bytes()).map(|_| random.next() as u8).collect();
        tame(format, &mut blocks);
        for isa in isas() {
            // Rows of one block, of a chunk and of more than one chunk; rows begin at any byte.
            for rows in [BLOCKS, BLOCKS / 2, 4, 1] {
                let cols = BLOCKS / rows * format.weights();
                for shift in [0, 1, 7] {
                    let shifted = [&vec![0xff; shift][..], &blocks].concat();
                    let codes = &shifted[shift..];
                    let encoding = Encoding::Block(format);
                    let w = Matrix::new(rows, cols, encoding, codes, &[], &[]).expect("consistent");
                    let mut out = vec![f32::NAN; rows * cols];
                    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
                        dequantize_row(isa, &w, format, row, out);
                    }
                    let digest = digest(out.iter().flat_map(|value| value.to_le_bytes()));
                    let want = expect[format.name()];
                    let what = format_args!("{format} in {rows} rows, shifted {shift}, {isa}");
                    assert_eq!(format!("{digest:016x}"), want, "{what}");
                }
            }
        }
    }
}

#[test]
fn every_expansion_is_that_of_the_loops() {
    let mut random = Random(5);
    for &format in BlockFormat::ALL {
        for isa in isas() {
            for _ in 0..40 {
                let mut blocks: Vec<u8> =
                    (0..format.row_bytes(CHUNK)).map(|_| random.next() as u8).collect();
                tame(format, &mut blocks);
                let row = BlockRow { bytes: &blocks, format, chunk_bytes: blocks.len() };
                let [want, got] = [Isa::Scalar, isa].map(|isa| {
                    let mut plain = Plain::new();
                    row.expand(isa, 0, &mut plain);
                    let numbers = [plain.scales, plain.biases].concat().concat();
                    (plain.codes, numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>())
                });
                assert!(want.0 == got.0, "codes of {format} on {isa}");
                assert_eq!(want.1, got.1, "scales of {format} on {isa}");
            }
        }
    }
}

#[test]
fn grids_are_whole() {
    #[track_caller]
    fn check(grid: &[u16], bits: u32, levels: &[i8], expect: u64) {
        let magnitudes = grid.iter().flat_map(|&entry| {
            let count = if bits == 2 { 8 } else { 4 };
            (0..count).map(move |i| levels[usize::from(entry >> (bits * i) & ((1 << bits) - 1))])
        });
        assert_eq!(digest(magnitudes.map(|level| level as u8)), expect);
    }
    let iq2 = [8, 25, 43];
    check(&grids::IQ2_XXS, 2, &iq2, 0xbb4e_e025_b5ac_6e8e);
    check(&grids::IQ2_XS, 2, &iq2, 0xc9b1_ee61_e799_09bd);
    check(&grids::IQ2_S, 2, &iq2, 0x123e_dd38_a3b6_2b90);
    check(&grids::IQ3_XXS, 3, &[4, 12, 20, 28, 36, 44, 52, 62], 0xdfa5_dc83_d6a1_55d5);
    check(&grids::IQ3_S, 3, &[1, 3, 5, 7, 9, 11, 13, 15], 0xfa37_020c_25b4_4829);
    check(&grids::IQ1, 2, &[-1, 0, 1], 0x6703_ed86_3501_ae2e);
}
