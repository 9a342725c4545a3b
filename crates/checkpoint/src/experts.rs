//! Where each expert of one layer lies, whatever the file calls it.
//!
//! Three forms exist: *stacked* (MLX `switch_mlp.gate_proj [E, I, H]`), *fused* (HF
//! `experts.gate_up_proj [E, 2I, H]`, gate rows first) and *separate* (HF and Mixtral: one tensor
//! per expert). In each of them one expert's projection is one contiguous range per part, so an
//! expert is at most twelve ranges and never a copy. All experts of a projection must be encoded
//! alike; gate, up and down may differ.
//!
//! The rows of a fused tensor are *interleaved* in gpt-oss's published files: gate, up, gate, up. There
//! `Gate` stands for the first half of these rows and `Up` for the second, still one range each, and
//! [`ExpertLayout::is_interleaved`] says that their products must be separated. Transposed experts
//! (Llama 4, unquantized gpt-oss) are not read here.

use std::fmt;

use crate::linear::BLOCKS;
use crate::{Checkpoint, Error, Linear, LinearSlice, Result, Span};
use format::{Encoding, Float};

/// One of the three matrices of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    /// `[intermediate, hidden]`, goes through the activation.
    Gate,
    /// `[intermediate, hidden]`, multiplies the gate.
    Up,
    /// `[hidden, intermediate]`.
    Down,
}

impl Projection {
    /// All three, in the order they are read and computed.
    pub const ALL: [Projection; 3] = [Projection::Gate, Projection::Up, Projection::Down];
}

impl fmt::Display for Projection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Projection::Gate => "gate",
            Projection::Up => "up",
            Projection::Down => "down",
        })
    }
}

/// How a file arranges its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpertForm {
    /// Three tensors with a leading dimension of experts.
    Stacked,
    /// Two such tensors: gate and up share one.
    Fused,
    /// Tensors of their own for each expert.
    Separate,
}

/// Where the experts of one layer lie.
#[derive(Clone, Debug)]
pub struct ExpertLayout {
    form: ExpertForm,
    path: String,
    experts: usize,
    interleaved: bool,
    projections: [Place; 3],
}

/// Where one projection of every expert lies.
#[derive(Clone, Debug)]
enum Place {
    /// Rows `first..first + rows` of each matrix in a stack.
    Stack { linear: Box<Linear>, first: usize, rows: usize },
    /// One slice per expert.
    Each(Vec<LinearSlice>),
}

/// Modules under the prefix that may hold the experts. The prefix may be the layer itself.
const BASES: [&str; 3] = ["", ".mlp", ".block_sparse_moe"];

/// Names of the stack inside such a module: mlx-lm, Gemma 4, gpt-oss and HF.
const STACKS: [&str; 4] = ["switch_mlp", "experts.switch_glu", "switch_glu", "experts"];

/// Names of gate, up and down: most models, and Mixtral with its descendants; last, a repacked copy of
/// interleaved experts, which has a name for each half of their rows.
const NAMES: [[&str; 3]; 3] =
    [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"], INTERLEAVED];

/// Names of the halves of interleaved rows, and of down.
const INTERLEAVED: [&str; 3] = ["gate_up_lower_proj", "gate_up_upper_proj", "down_proj"];

impl ExpertLayout {
    /// Finds the experts under `prefix`, such as `model.layers.3.mlp` or `model.layers.3`.
    pub fn find(
        checkpoint: &Checkpoint,
        prefix: &str,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> Result<ExpertLayout> {
        let search = Search { checkpoint, experts, hidden, intermediate };
        if experts == 0 {
            return Err(search.nothing(prefix));
        }
        for base in BASES {
            let base = format!("{prefix}{base}");
            for stack in STACKS {
                let path = format!("{base}.{stack}");
                if checkpoint.has_linear(&format!("{path}.gate_up_proj")) {
                    return search.fused(path);
                }
                if checkpoint.has_linear(&format!("{path}.gate_proj")) {
                    return search.stacked(path);
                }
            }
            for names in NAMES {
                let path = format!("{base}.experts");
                if checkpoint.has_linear(&format!("{path}.0.{}", names[0])) {
                    return search.separate(path, names);
                }
            }
        }
        Err(search.nothing(prefix))
    }

    /// How the file arranges them.
    pub fn form(&self) -> ExpertForm {
        self.form
    }

    /// The module that holds them, such as `model.layers.3.mlp.switch_mlp`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether rows of gate and up alternate: `Gate` is then the first half of the rows and `Up` the
    /// second, and row `i` of both together belongs to gate where `i` is even.
    pub fn is_interleaved(&self) -> bool {
        self.interleaved
    }

    /// The last part of a projection's module path in a file where every expert has tensors of its own.
    pub fn separate_name(&self, projection: Projection) -> &'static str {
        let names = if self.interleaved { INTERLEAVED } else { NAMES[0] };
        names[projection as usize]
    }

    /// The number of experts.
    pub fn experts(&self) -> usize {
        self.experts
    }

    /// The type of a projection's ordinary bias, where it has one.
    pub fn bias_float(&self, projection: Projection) -> Option<Float> {
        self.slice(0, projection).bias_float
    }

    /// How a projection is stored, in every expert.
    pub fn encoding(&self, projection: Projection) -> Encoding {
        match self.place(projection) {
            Place::Stack { linear, .. } => linear.encoding,
            Place::Each(slices) => slices[0].encoding,
        }
    }

    /// The byte ranges of one projection of one expert.
    ///
    /// # Panics
    /// When there is no such expert.
    pub fn slice(&self, expert: usize, projection: Projection) -> LinearSlice {
        assert!(expert < self.experts, "expert {expert} of {}", self.experts);
        match self.place(projection) {
            Place::Stack { linear, first, rows } => linear.slice(expert).rows(*first, *rows),
            Place::Each(slices) => slices[expert],
        }
    }

    /// All ranges of one expert: gate, up, down, each weight, scales, biases, bias.
    ///
    /// # Panics
    /// When there is no such expert.
    pub fn spans(&self, expert: usize) -> Vec<Span> {
        Projection::ALL.iter().flat_map(|&part| self.slice(expert, part).spans()).collect()
    }

    /// Bytes of one expert; all have the same.
    pub fn bytes_per_expert(&self) -> u64 {
        Projection::ALL.iter().map(|&part| self.slice(0, part).bytes()).sum()
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> u64 {
        self.bytes_per_expert() * self.experts as u64
    }

    fn place(&self, projection: Projection) -> &Place {
        &self.projections[projection as usize]
    }
}

struct Search<'a> {
    checkpoint: &'a Checkpoint,
    experts: usize,
    hidden: usize,
    intermediate: usize,
}

impl Search<'_> {
    /// Rows and columns of a projection.
    fn shape(&self, projection: Projection) -> (usize, usize) {
        match projection {
            Projection::Gate | Projection::Up => (self.intermediate, self.hidden),
            Projection::Down => (self.hidden, self.intermediate),
        }
    }

    fn stack(&self, path: &str, rows: usize, columns: usize) -> Result<Box<Linear>> {
        self.checkpoint.linear(path, Some(self.experts), rows, columns).map(Box::new)
    }

    fn stacked(&self, path: String) -> Result<ExpertLayout> {
        let place = |projection: Projection| {
            let (rows, columns) = self.shape(projection);
            let name = NAMES[0][projection as usize];
            let linear = self.stack(&format!("{path}.{name}"), rows, columns)?;
            Ok(Place::Stack { linear, first: 0, rows })
        };
        let projections =
            [place(Projection::Gate)?, place(Projection::Up)?, place(Projection::Down)?];
        Ok(self.layout(ExpertForm::Stacked, path, false, projections))
    }

    fn fused(&self, path: String) -> Result<ExpertLayout> {
        let rows = self.intermediate;
        // Saturating: an absurd size from the configuration then fails as a wrong shape.
        let both = rows.saturating_mul(2);
        let gate_up = self.stack(&format!("{path}.gate_up_proj"), both, self.hidden)?;
        let down = self.stack(&format!("{path}.down_proj"), self.hidden, rows)?;
        // Only gpt-oss publishes blocks, and its rows alternate.
        let interleaved = gate_up.weight.name.ends_with(BLOCKS);
        if interleaved {
            self.expect_even()?;
        }
        let gate = Place::Stack { linear: gate_up.clone(), first: 0, rows };
        let up = Place::Stack { linear: gate_up, first: rows, rows };
        let down = Place::Stack { linear: down, first: 0, rows: self.hidden };
        Ok(self.layout(ExpertForm::Fused, path, interleaved, [gate, up, down]))
    }

    fn separate(&self, path: String, names: [&str; 3]) -> Result<ExpertLayout> {
        let place = |projection: Projection| {
            let (rows, columns) = self.shape(projection);
            let name = names[projection as usize];
            let mut slices: Vec<LinearSlice> = Vec::new();
            for expert in 0..self.experts {
                let path = format!("{path}.{expert}.{name}");
                let slice = self.checkpoint.linear(&path, None, rows, columns)?.slice(0);
                let first = slices.first().unwrap_or(&slice);
                let form = |slice: &LinearSlice| (slice.encoding, slice.bias_float);
                if form(first) != form(&slice) {
                    return Err(self.mixed(&path, projection, expert, first, &slice));
                }
                slices.push(slice);
            }
            Ok(Place::Each(slices))
        };
        let projections =
            [place(Projection::Gate)?, place(Projection::Up)?, place(Projection::Down)?];
        let interleaved = names == INTERLEAVED;
        if interleaved {
            self.expect_even()?;
        }
        Ok(self.layout(ExpertForm::Separate, path, interleaved, projections))
    }

    fn layout(
        &self,
        form: ExpertForm,
        path: String,
        interleaved: bool,
        projections: [Place; 3],
    ) -> ExpertLayout {
        ExpertLayout { form, path, experts: self.experts, interleaved, projections }
    }

    /// No pair of interleaved rows may lie in both halves.
    fn expect_even(&self) -> Result<()> {
        if self.intermediate.is_multiple_of(2) {
            return Ok(());
        }
        Err(Error::Config {
            path: self.checkpoint.folder().join("config.json"),
            key: "intermediate_size".to_owned(),
            expected: "an even number, since rows of gate and up alternate",
            got: self.intermediate.to_string(),
        })
    }

    fn mixed(
        &self,
        path: &str,
        projection: Projection,
        expert: usize,
        expected: &LinearSlice,
        got: &LinearSlice,
    ) -> Error {
        let describe = |slice: &LinearSlice| match slice.bias_float {
            Some(bias) => format!("{} with {} bias", slice.encoding, bias.dtype()),
            None => slice.encoding.to_string(),
        };
        Error::MixedExperts {
            folder: self.checkpoint.folder(),
            prefix: path.to_owned(),
            projection,
            expert,
            expected: describe(expected),
            got: describe(got),
        }
    }

    fn nothing(&self, prefix: &str) -> Error {
        let tried = [
            "switch_mlp.gate_proj",
            "experts.switch_glu.gate_proj",
            "experts.gate_up_proj",
            "experts.gate_proj",
            "experts.0.gate_proj",
            "experts.0.w1",
        ];
        Error::NoExperts {
            folder: self.checkpoint.folder(),
            prefix: prefix.to_owned(),
            tried: tried.map(str::to_owned).to_vec(),
        }
    }
}
