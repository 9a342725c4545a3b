//! One ragged batch serves prefill, decode, verification and several sequences at once.

/// The input of one forward pass.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// One row for each, segment after segment.
    pub tokens: Vec<u32>,
    /// The position of each row in its sequence. (Text: the three streams of M-RoPE are equal.)
    pub positions: Vec<u32>,
    /// Which rows belong to which sequence.
    pub segments: Vec<Segment>,
    /// Layers whose output hidden states are wanted, for draft heads.
    pub taps: Vec<usize>,
    /// Whether every row's hidden state after the last norm is wanted, for draft heads.
    pub hidden: bool,
    /// Whether some rows are verified: recurrent layers keep their inputs.
    pub keeps: bool,
}

/// Consecutive rows of one sequence.
#[derive(Clone, Debug)]
pub struct Segment {
    /// Index into the sequences given to the forward pass.
    pub sequence: usize,
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub count: usize,
    /// What the rows are for.
    pub kind: SegmentKind,
    /// Which rows' logits are wanted.
    pub logits: Logits,
}

/// What a segment is for. It never changes a row's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Part of a prompt.
    Prefill,
    /// The next token.
    Decode,
    /// Drafted tokens that are checked.
    Verify,
}

/// Which rows of a segment go through the output head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// None: the prompt continues in the next chunk.
    None,
    /// The last row.
    Last,
    /// Every row.
    All,
}

impl Batch {
    /// Appends `tokens` of a sequence, the first of them at `position`.
    pub fn push(
        &mut self,
        sequence: usize,
        position: usize,
        tokens: &[u32],
        kind: SegmentKind,
        logits: Logits,
    ) {
        let row = self.tokens.len();
        self.keeps |= kind == SegmentKind::Verify;
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((position..position + tokens.len()).map(|p| p as u32));
        self.segments.push(Segment { sequence, row, count: tokens.len(), kind, logits });
    }

    /// By row: 0 if it is certain, else its place among the drafted rows of its segment, from 1.
    pub fn depths(&self) -> Vec<u8> {
        let of = |segment: &Segment| -> Vec<u8> {
            let depth = |row: usize| if segment.is_trial() { row.min(255) as u8 } else { 0 };
            (0..segment.count).map(depth).collect()
        };
        self.segments.iter().flat_map(of).collect()
    }

    /// Rows whose logits are wanted, in order.
    pub fn logit_rows(&self) -> Vec<usize> {
        self.segments.iter().flat_map(Segment::logit_rows).collect()
    }
}

impl Segment {
    /// Whether some of its rows may have to be taken back.
    pub fn is_trial(&self) -> bool {
        self.kind == SegmentKind::Verify
    }

    /// Its rows whose logits are wanted.
    pub fn logit_rows(&self) -> std::ops::Range<usize> {
        let end = self.row + self.count;
        match self.logits {
            Logits::None => end..end,
            Logits::Last => end - 1..end,
            Logits::All => self.row..end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_say_what_is_drafted_and_whose_logits_are_wanted() {
        let mut batch = Batch::default();
        batch.push(2, 5, &[1, 2, 3], SegmentKind::Prefill, Logits::None);
        assert!(!batch.keeps);
        batch.push(0, 9, &[4], SegmentKind::Decode, Logits::Last);
        batch.push(1, 7, &[5, 6], SegmentKind::Verify, Logits::All);
        assert_eq!(batch.positions, [5, 6, 7, 9, 7, 8]);
        assert_eq!((batch.logit_rows(), batch.depths()), (vec![3, 4, 5], vec![0, 0, 0, 0, 0, 1]));
        assert!(batch.keeps);
    }
}
