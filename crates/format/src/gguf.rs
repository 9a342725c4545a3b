//! The numbers that GGUF files have for the types of tensors, and what is known of those that are not read.

use std::fmt;

use crate::{BlockFormat, Dtype};

/// Types of one element, by number. Blocks have their numbers themselves.
const ELEMENTS: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::BF16),
];

/// Types of ik_llama.cpp with a number and a name of their own.
const IK: [(u32, &str); 16] = [
    (133, "Q6_0"),
    (137, "IQ2_K"),
    (138, "IQ3_K"),
    (139, "IQ4_K"),
    (140, "IQ5_K"),
    (141, "IQ6_K"),
    (144, "IQ4_KS"),
    (145, "IQ2_KS"),
    (146, "IQ4_KSS"),
    (152, "IQ5_KS"),
    (153, "IQ2_KT"),
    (154, "IQ3_KT"),
    (155, "IQ4_KT"),
    (156, "IQ3_KS"),
    (157, "IQ2_KL"),
    (158, "IQ1_KT"),
];

/// A type of tensors that is not read: what it is, and what can be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreadType {
    /// Its number.
    pub id: u32,
    /// Its name, if it has one.
    pub name: Option<&'static str>,
    /// Why it is not read, and what is.
    pub reason: &'static str,
}

impl UnreadType {
    fn of(id: u32) -> UnreadType {
        const ACTIVATIONS: &str = "a type of activations, which no file should have";
        const REPACKED: &str =
            "a repacked type that ggml has removed; the file needs to be converted again";
        const IK_REASON: &str =
            "a type of ik_llama.cpp alone; use a file with the types of llama.cpp";
        let (name, reason) = match id {
            4 => (
                Some("Q4_2"),
                "removed from ggml, and MXFP4 in gpt-oss files that Ollama made in August 2025; \
                 use a file that llama.cpp made",
            ),
            5 => (Some("Q4_3"), "removed from ggml; the file needs to be converted again"),
            9 => (Some("Q8_1"), ACTIVATIONS),
            15 => (Some("Q8_K"), ACTIVATIONS),
            31 => (Some("Q4_0_4_4"), REPACKED),
            32 => (Some("Q4_0_4_8"), REPACKED),
            33 => (Some("Q4_0_8_8"), REPACKED),
            36 => (Some("IQ4_NL_4_4"), REPACKED),
            37 => (Some("IQ4_NL_4_8"), REPACKED),
            38 => (Some("IQ4_NL_8_8"), REPACKED),
            202..=399 => (
                None,
                "a type of ik_llama.cpp with rows that take turns (`_R4`, `_R8`); \
                 use a file with the types of llama.cpp",
            ),
            id => match IK.iter().find(|(other, _)| *other == id) {
                Some((_, name)) => (Some(*name), IK_REASON),
                None => (None, "not known; the file may be newer than this program, or broken"),
            },
        };
        UnreadType { id, name, reason }
    }
}

impl fmt::Display for UnreadType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "type {}", self.id)?;
        match self.name {
            Some(name) => write!(formatter, " ({name}) is {}", self.reason),
            None => write!(formatter, " is {}", self.reason),
        }
    }
}

impl Dtype {
    /// The type that has this number in a GGUF file.
    pub fn from_gguf(id: u32) -> Result<Dtype, UnreadType> {
        let element = ELEMENTS.iter().find(|(other, _)| *other == id).map(|(_, dtype)| *dtype);
        let found = element.or_else(|| BlockFormat::from_id(id).map(Dtype::Block));
        found.ok_or_else(|| UnreadType::of(id))
    }

    /// Its number in a GGUF file; `None` where there is none.
    pub fn gguf_id(self) -> Option<u32> {
        match self {
            Dtype::Block(format) => Some(format.id()),
            dtype => ELEMENTS.iter().find(|(_, other)| *other == dtype).map(|(id, _)| *id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_are_one_to_one() {
        for id in 0..500 {
            match Dtype::from_gguf(id) {
                Ok(dtype) => assert_eq!(dtype.gguf_id(), Some(id), "{dtype}"),
                Err(unread) => assert_eq!(unread.id, id),
            }
        }
        let read = (0..500).filter(|&id| Dtype::from_gguf(id).is_ok()).count();
        assert_eq!(read, ELEMENTS.len() + BlockFormat::ALL.len());
        assert_eq!(Dtype::U8.gguf_id(), None);
    }

    #[track_caller]
    fn check(id: u32, expect: &str) {
        let text = Dtype::from_gguf(id).expect_err("a type that is not read").to_string();
        assert!(text.starts_with(expect), "{text}");
    }

    #[test]
    fn what_is_not_read_says_why() {
        check(4, "type 4 (Q4_2) is removed from ggml, and MXFP4 in gpt-oss files");
        check(9, "type 9 (Q8_1) is a type of activations");
        check(31, "type 31 (Q4_0_4_4) is a repacked type that ggml has removed");
        check(144, "type 144 (IQ4_KS) is a type of ik_llama.cpp alone");
        check(212, "type 212 is a type of ik_llama.cpp with rows that take turns");
        check(43, "type 43 is not known");
    }
}
