//! What a caller may choose when a model is loaded. Everything has a sensible default.

use compute::memory::KvFormat;
use machine::cpu::Isa;

/// Choices of a [`crate::Runner`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Instruction set of the kernels.
    pub isa: Isa,
    /// Compute threads, the caller's included.
    pub threads: usize,
    /// Positions a sequence may have.
    pub context: usize,
    /// Sequences that may live at once.
    pub sequences: usize,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// Rows of one prefill step: whole blocks of 64.
    pub chunk: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            isa: machine::cpu::isa(),
            threads: machine::cpu::core_count(),
            context: 4096,
            sequences: 1,
            kv: KvFormat::F16,
            chunk: 512,
        }
    }
}
