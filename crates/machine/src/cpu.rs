//! Cores and instruction sets.
//!
//! An [`Isa`] names a whole set of features that kernels are written against, so that a kernel checks one
//! value instead of a dozen CPUID bits. Detection runs once and includes the operating system's share of the
//! answer: a feature the kernel does not save on a context switch, or one a hypervisor advertises and then
//! faults on, does not count as present.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::{Error, Result, amx};

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Isa {
    /// Plain Rust, the reference that every other set is tested against.
    Scalar,
    /// 64-bit Arm's baseline vectors.
    Neon,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI, on top of everything in [`Isa::Avx2`].
    Avx512,
    /// Everything in [`Isa::Avx512`] and AMX-INT8 tiles that were seen to work.
    Amx,
}

impl Isa {
    /// Every instruction set, plainest first.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The lowercase name, as flags and reports spell it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Isa {
    type Err = Error;

    fn from_str(name: &str) -> Result<Isa> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == name)
            .ok_or_else(|| Error::UnknownIsa { name: name.to_owned() })
    }
}

/// The best instruction set that is usable here. Detected once.
pub fn isa() -> Isa {
    static BEST: OnceLock<Isa> = OnceLock::new();
    *BEST.get_or_init(|| {
        Isa::ALL.into_iter().rev().find(|&isa| supports(isa)).unwrap_or(Isa::Scalar)
    })
}

/// Whether kernels written for `isa` may run here.
pub fn supports(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        // Every 64-bit Arm target Rust supports has NEON in its baseline.
        Isa::Neon => cfg!(target_arch = "aarch64"),
        Isa::Avx2 => has_avx2(),
        Isa::Avx512 => has_avx512(),
        Isa::Amx => has_avx512() && amx::is_usable(),
    }
}

/// How many threads can run at once: available cores after affinity masks and cgroup quotas.
pub fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && std::arch::is_x86_feature_detected!("avx512f")
        && std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512dq")
        && std::arch::is_x86_feature_detected!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse::<Isa>().unwrap(), isa);
        }
        for name in ["", "AVX2", "sse2", "avx512f", " amx"] {
            let message = name.parse::<Isa>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}`")), "{message}");
        }
        assert_eq!(format!("{:>8}", Isa::Amx), "     amx");
    }

    #[test]
    fn better_sets_contain_the_plainer_ones() {
        assert!(supports(Isa::Scalar));
        assert!(supports(isa()));
        assert!(!supports(Isa::Amx) || supports(Isa::Avx512));
        assert!(!supports(Isa::Avx512) || supports(Isa::Avx2));
        assert!(!(supports(Isa::Neon) && supports(Isa::Avx2)));
    }

    #[test]
    fn nothing_usable_is_better_than_the_best() {
        let best = Isa::ALL.iter().position(|&other| other == isa()).unwrap();
        for &better in &Isa::ALL[best + 1..] {
            assert!(!supports(better), "{better}");
        }
    }

    #[test]
    fn there_is_a_core() {
        assert!(core_count() >= 1);
    }
}
