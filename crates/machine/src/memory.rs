//! How much memory there is, how much of it we may take, and how much we hold.
//!
//! The machine's own numbers are not the whole answer: a container's limit is often far below them, and
//! past it the kernel kills without warning. So [`Memory`] carries both, and [`Memory::budget_bytes`] is the
//! one place that turns them into a promise. Swap is reported but never counted on.

use std::path::PathBuf;

use serde::Serialize;

use crate::{Result, system};

const GIB: u64 = 1 << 30;

/// The machine's memory at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Memory {
    /// All physical memory.
    pub total_bytes: u64,
    /// What the system could hand out without swapping, file cache given up included.
    pub available_bytes: u64,
    /// The tightest limit below `total_bytes` on this process, if there is one.
    pub limit: Option<Limit>,
    /// The least that any limit leaves. Not always below `limit`: a wider group may be fuller.
    pub limit_headroom_bytes: Option<u64>,
    /// Swap space.
    pub swap_total_bytes: u64,
    /// Swap space that is not in use.
    pub swap_free_bytes: u64,
}

impl Memory {
    /// Queries the system now.
    pub fn read() -> Result<Memory> {
        system::memory()
    }

    /// The most this process should take in addition to what it already holds.
    ///
    /// Start from what can be had: available memory, or what the limits leave if that is less. Keep back a
    /// tenth of it, at least 1 GiB, for page tables, file cache, the network and the rest of the machine;
    /// where 1 GiB would be more than a quarter (small machines), keep back a quarter.
    pub fn budget_bytes(&self) -> u64 {
        let headroom_bytes = self.limit_headroom_bytes.unwrap_or(u64::MAX);
        let spare_bytes = self.available_bytes.min(headroom_bytes);
        let reserve_bytes = (spare_bytes / 10).max(GIB.min(spare_bytes / 4));
        spare_bytes - reserve_bytes
    }
}

/// Where a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitSource {
    /// `memory.limit_in_bytes` of a version 1 group.
    CgroupV1,
    /// `memory.max` or `memory.high` of a version 2 group.
    CgroupV2,
    /// `ulimit -v`, which counts mapped memory whether or not it is resident.
    AddressSpace,
}

/// A limit on memory, tighter than the machine itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Limit {
    /// The most that may be used.
    pub bytes: u64,
    /// What of it is in use and cannot be reclaimed: everything charged except clean and dirty file pages
    /// and reclaimable kernel memory.
    pub used_bytes: u64,
    /// File pages charged to it, whichever process of the group read or wrote them first: zero for an address space.
    pub file_bytes: u64,
    /// Which mechanism sets it.
    pub source: LimitSource,
    /// The group's folder, or the file that holds the limit.
    pub path: PathBuf,
}

impl Limit {
    /// What is left below the limit.
    pub fn headroom_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.used_bytes)
    }
}

/// What this process holds. Zero where the system does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct MemoryUsage {
    /// Physical memory now.
    pub resident_bytes: u64,
    /// The most physical memory ever.
    pub peak_resident_bytes: u64,
    /// The part of `resident_bytes` that is our own: heap, stacks, [`crate::pages::Pages`].
    pub anonymous_bytes: u64,
    /// The part of `resident_bytes` that is mapped from files or shared memory.
    pub file_bytes: u64,
    /// What the system has moved out to swap.
    pub swap_bytes: u64,
    /// File pages charged to the control group whose limit is the tightest, cached ones too, which `file_bytes` does
    /// not count: they are reclaimed under pressure, but count against the limit. `None` without such a limit.
    pub group_file_bytes: Option<u64>,
}

/// What this process holds now.
pub fn usage() -> MemoryUsage {
    system::usage()
}

/// Bytes that the whole system has moved to swap and back since it started. `None` where it does not say.
pub fn swap_traffic_bytes() -> Option<u64> {
    system::swap_traffic_bytes()
}

/// Blocks of the heap from which on each has memory of its own: as small as an allocation of its own is cheap compared with it.
const LARGE_BLOCK_BYTES: i32 = 1 << 20;

/// Has the allocator give large blocks back to the system when they are freed, and keep little of the rest. To be called
/// once, when the program begins.
pub fn return_large_blocks() {
    system::return_large_blocks(LARGE_BLOCK_BYTES);
}

/// Gives memory that this process has freed back to the system, where the allocator keeps it otherwise. It walks all of the
/// heap, which takes milliseconds: not for a thread that others wait for.
pub fn release_freed() {
    system::release_freed();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(available_bytes: u64, limit_headroom_bytes: Option<u64>) -> Memory {
        Memory {
            total_bytes: 64 * GIB,
            available_bytes,
            limit: None,
            limit_headroom_bytes,
            swap_total_bytes: 0,
            swap_free_bytes: 0,
        }
    }

    #[test]
    fn budget_keeps_back_a_tenth_and_at_least_a_gibibyte() {
        #[track_caller]
        fn check(available_bytes: u64, headroom_bytes: Option<u64>, budget_bytes: u64) {
            assert_eq!(memory(available_bytes, headroom_bytes).budget_bytes(), budget_bytes);
        }
        check(40 * GIB, None, 36 * GIB);
        check(10 * GIB, None, 9 * GIB);
        check(8 * GIB, None, 7 * GIB);
        check(4 * GIB, None, 3 * GIB);
        // Small machines: a quarter.
        check(2 * GIB, None, 3 * GIB / 2);
        check(GIB, None, 3 * GIB / 4);
        check(0, None, 0);
        check(3, None, 3);
        // The tighter of the two binds.
        check(40 * GIB, Some(20 * GIB), 18 * GIB);
        check(20 * GIB, Some(40 * GIB), 18 * GIB);
        check(20 * GIB, Some(0), 0);
        check(u64::MAX, Some(u64::MAX), u64::MAX - u64::MAX / 10);
    }

    #[test]
    fn this_machine_answers() {
        let memory = Memory::read().unwrap();
        assert!(memory.total_bytes >= memory.available_bytes);
        assert!(memory.budget_bytes() < memory.total_bytes);

        let mut pages = crate::pages::Pages::new(32 << 20).unwrap();
        pages.prefault();
        let after = usage();
        let own_bytes = match cfg!(windows) {
            // It does not report which part is our own.
            true => after.resident_bytes,
            false => after.anonymous_bytes,
        };
        assert!(own_bytes >= 32 << 20, "{after:?}");
        assert!(after.peak_resident_bytes >= after.resident_bytes);
    }
}
