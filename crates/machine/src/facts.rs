//! What this machine is, in one serialisable value for `bench --json` and `doctor`.
//!
//! Facts describe; they do not judge (that is `doctor`) and do not measure (that is `probe`). A benchmark
//! without them cannot be compared with another.

use serde::{Serialize, Serializer};

use crate::cpu::{self, Isa};
use crate::memory::Memory;
use crate::{amx, system};

/// This machine.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// `linux`, `macos`, `windows`.
    pub os: &'static str,
    /// `x86_64`, `aarch64`.
    pub architecture: &'static str,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// What the processor calls itself.
    pub cpu_model: Option<String>,
    /// Threads that can run at once.
    pub core_count: usize,
    /// The best instruction set that kernels will use.
    pub isa: Isa,
    /// Every usable instruction set.
    pub instruction_sets: Vec<Isa>,
    /// The processor and the system name AMX. If `isa` is less, AMX was tried and did not work.
    pub amx_advertised: bool,
    /// Caches of the first core, smallest first. Instruction caches are left out.
    pub caches: Vec<Cache>,
    /// Whether anonymous memory can have huge pages.
    pub huge_pages: HugePages,
    /// Memory, if the system reports it.
    pub memory: Option<Memory>,
}

/// One level of cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Cache {
    /// 1 is closest to the core.
    pub level: u32,
    /// Its size.
    pub size_bytes: u64,
}

/// The system's setting for transparent huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HugePages {
    /// All memory gets them.
    Always,
    /// Memory that requests them gets them, as [`crate::pages::Pages`] does.
    Madvise,
    /// Switched off.
    Never,
    /// This system does not say, or has none.
    Unknown,
}

impl Serialize for Isa {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl Facts {
    /// Gathers the facts of this machine.
    pub fn gather() -> Facts {
        Facts {
            os: std::env::consts::OS,
            architecture: std::env::consts::ARCH,
            kernel: system::kernel(),
            cpu_model: system::cpu_model(),
            core_count: cpu::core_count(),
            isa: cpu::isa(),
            instruction_sets: Isa::ALL.into_iter().filter(|&isa| cpu::supports(isa)).collect(),
            amx_advertised: amx::is_advertised(),
            caches: system::caches(),
            huge_pages: system::huge_pages(),
            memory: Memory::read().ok(),
        }
    }

    /// The size of the cache furthest from the core.
    pub fn last_cache_bytes(&self) -> Option<u64> {
        self.caches.iter().max_by_key(|cache| cache.level).map(|cache| cache.size_bytes)
    }
}

/// What this computer is called on its network.
pub fn host_name() -> Option<String> {
    system::host_name().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        let facts = Facts::gather();
        assert!(facts.instruction_sets.contains(&facts.isa));
        assert_eq!(facts.core_count, cpu::core_count());
        assert!(facts.kernel.is_some() && facts.memory.is_some(), "{facts:?}");
    }
}
