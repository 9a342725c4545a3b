//! Which blocks of keys the rows of a batch look at, where a family lets each row choose.

use std::cmp::Ordering;

use crate::memory::BLOCK;

/// For each row and head of keys a bit for each block.
#[derive(Debug, Default)]
pub(crate) struct SelectedBlocks {
    rows: usize,
    kv_heads: usize,
    /// Words of a list.
    words: usize,
    bits: Vec<u64>,
    /// The blocks of one list, best first.
    order: Vec<u32>,
}

impl SelectedBlocks {
    /// Keeps the `most` best blocks of each list of scores, the row's own among them.
    ///
    /// `scores` has `cols` columns: for each head one for each block from the first. The order is total: a larger score
    /// first, equal ones by the earlier block, and what is not a number last.
    pub(crate) fn choose(
        &mut self,
        scores: &[f32],
        cols: usize,
        positions: &[u32],
        kv_heads: usize,
        most: usize,
    ) {
        let blocks = cols / kv_heads;
        let words = blocks.div_ceil(64);
        (self.rows, self.kv_heads, self.words) = (positions.len(), kv_heads, words);
        self.bits.clear();
        self.bits.resize(positions.len() * kv_heads * words, 0);
        for (list, scores) in scores.chunks_exact(blocks).enumerate() {
            let own = positions[list / kv_heads] as usize / BLOCK;
            let bits = &mut self.bits[list * words..][..words];
            let mut set = |block: usize| bits[block / 64] |= 1 << (block % 64);
            set(own);
            // The others, as many as are left.
            let most = most.saturating_sub(1).min(own);
            if most == 0 {
                continue;
            }
            self.order.clear();
            self.order.extend(0..own as u32);
            let better = |a: &u32, b: &u32| {
                let (x, y) = (scores[*a as usize], scores[*b as usize]);
                let by_score = match (x.is_nan(), y.is_nan()) {
                    (false, false) => y.partial_cmp(&x).unwrap_or(Ordering::Equal),
                    (x, y) => x.cmp(&y),
                };
                by_score.then(a.cmp(b))
            };
            self.order.select_nth_unstable_by(most - 1, better);
            self.order[..most].iter().for_each(|&block| set(block as usize));
        }
    }

    /// The table, if it was made for so many rows and heads.
    ///
    /// # Panics
    /// If it was not.
    pub(crate) fn check(&self, rows: usize, kv_heads: usize) -> &SelectedBlocks {
        assert_eq!((self.rows, self.kv_heads), (rows, kv_heads), "a selection of other rows");
        self
    }

    /// Whether a row of the batch looks at a block.
    #[inline(always)]
    pub(crate) fn includes(&self, row: usize, kv_head: usize, block: usize) -> bool {
        let list = &self.bits[(row * self.kv_heads + kv_head) * self.words..][..self.words];
        list.get(block / 64).is_some_and(|word| word >> (block % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The blocks of a list.
    fn blocks(table: &SelectedBlocks, row: usize, kv_head: usize) -> Vec<usize> {
        (0..128).filter(|&block| table.includes(row, kv_head, block)).collect()
    }

    #[test]
    fn rows_choose_their_best_blocks_and_their_own() {
        let block = BLOCK as u32;
        let nan = f32::NAN;
        let scores = [
            [0.5, 2.0, 2.0, 2.0, -1.0],
            [nan, -3.0, nan, -f32::INFINITY, 9.0],
            [1.0, 8.0, 9.0, 9.0, 9.0],
            [7.0, 6.0, 5.0, 9.0, 9.0],
        ];
        let mut table = SelectedBlocks::default();
        // Two rows of two heads: the first in block 4, the second in block 1.
        table.choose(&scores.concat(), 10, &[4 * block + 5, 2 * block - 1], 2, 3);
        assert_eq!(blocks(&table, 0, 0), [1, 2, 4]);
        assert_eq!(blocks(&table, 0, 1), [1, 3, 4]);
        assert_eq!(blocks(&table, 1, 0), [0, 1]);
        assert_eq!(blocks(&table, 1, 1), [0, 1]);
        table.choose(&[1.0; 100], 100, &[90 * block], 1, 1);
        assert_eq!(blocks(&table, 0, 0), [90]);
        table.choose(&[1.0; 100], 100, &[90 * block], 1, 200);
        assert_eq!(blocks(&table, 0, 0), (0..=90).collect::<Vec<_>>());
    }
}
