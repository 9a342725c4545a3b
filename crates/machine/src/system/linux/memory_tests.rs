//! Memory and usage on fixture trees.

use super::*;
use crate::system::linux::procfs::fixture::tree;

const GIB: u64 = 1 << 30;

const MEMINFO: (&str, &str) = (
    "/proc/meminfo",
    "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   25165824 kB\n\
     Buffers:          10240 kB\nSwapTotal:       2097152 kB\nSwapFree:        1048576 kB\n",
);
const V2: [(&str, &str); 2] = [
    ("/proc/self/cgroup", "0::/a/b\n"),
    ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
];

#[track_caller]
fn check(files: &[(&str, &str)], limit_bytes: Option<u64>, headroom_bytes: Option<u64>) -> Memory {
    let memory = memory(tree(files).path()).unwrap();
    assert_eq!(memory.limit.as_ref().map(|limit| limit.bytes), limit_bytes);
    assert_eq!(memory.limit_headroom_bytes, headroom_bytes);
    memory
}

#[test]
fn a_machine_without_limits() {
    let memory = check(&[MEMINFO], None, None);
    assert_eq!(memory.total_bytes, 32 * GIB);
    assert_eq!(memory.available_bytes, 24 * GIB);
    assert_eq!((memory.swap_total_bytes, memory.swap_free_bytes), (2 * GIB, GIB));
    assert_eq!(memory.budget_bytes(), 24 * GIB - 24 * GIB / 10);
}

#[test]
fn the_tightest_limit_is_named_and_the_fullest_group_binds() {
    let memory = check(
        &[
            MEMINFO,
            V2[0],
            V2[1],
            ("/sys/fs/cgroup/a/b/memory.max", "8589934592\n"), // 8 GiB, empty
            ("/sys/fs/cgroup/a/memory.max", "17179869184\n"),  // 16 GiB, 12 of them taken
            ("/sys/fs/cgroup/a/memory.current", "12884901888\n"),
        ],
        Some(8 * GIB),
        Some(4 * GIB),
    );
    let limit = memory.limit.as_ref().unwrap();
    assert!(limit.path.ends_with("a/b"), "{limit:?}");
    assert_eq!(limit.source, LimitSource::CgroupV2);
    assert_eq!(memory.budget_bytes(), 3 * GIB);
}

#[test]
fn reclaimable_cache_does_not_lower_the_budget() {
    let current = ("/sys/fs/cgroup/a/b/memory.current", "8589934592\n");
    let max = ("/sys/fs/cgroup/a/b/memory.max", "8589934592\n");
    let full = [MEMINFO, V2[0], V2[1], max, current];
    assert_eq!(check(&full, Some(8 * GIB), Some(0)).budget_bytes(), 0);
    let stat = ("/sys/fs/cgroup/a/b/memory.stat", "inactive_file 8589934592\n");
    let cached = [MEMINFO, V2[0], V2[1], max, current, stat];
    assert_eq!(check(&cached, Some(8 * GIB), Some(8 * GIB)).budget_bytes(), 7 * GIB);
}

#[test]
fn limits_above_the_machine_do_not_count() {
    let max = ("/sys/fs/cgroup/a/b/memory.max", "68719476736\n");
    check(&[MEMINFO, V2[0], V2[1], max], None, None);
}

#[test]
fn a_limit_that_inner_groups_repeat_is_named_where_it_is_set() {
    let group = "/sys/fs/cgroup/memory";
    let stat = "hierarchical_memory_limit 8589934592\n";
    let files = [
        ("/proc/meminfo".to_owned(), MEMINFO.1),
        ("/proc/self/cgroup".to_owned(), "4:memory:/a/b\n"),
        (
            "/proc/self/mountinfo".to_owned(),
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        ),
        (format!("{group}/a/b/memory.limit_in_bytes"), "9223372036854771712\n"),
        (format!("{group}/a/b/memory.stat"), stat),
        (format!("{group}/a/memory.limit_in_bytes"), "8589934592\n"),
        (format!("{group}/a/memory.stat"), stat),
    ];
    let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    let memory = check(&files, Some(8 * GIB), Some(8 * GIB));
    assert!(memory.limit.unwrap().path.ends_with("memory/a"));
}

#[test]
fn address_space_limits_count() {
    let memory = check(
        &[
            MEMINFO,
            ("/proc/self/limits", "Max address space         8589934592    unlimited    bytes\n"),
            ("/proc/self/status", "VmSize:\t 1048576 kB\n"),
        ],
        Some(8 * GIB),
        Some(7 * GIB),
    );
    assert_eq!(memory.limit.unwrap().source, LimitSource::AddressSpace);
}

#[test]
fn old_kernels_estimate_available_memory() {
    let text =
        "MemTotal: 33554432 kB\nMemFree: 1048576 kB\nBuffers: 1048576 kB\nCached: 2097152 kB\n";
    assert_eq!(check(&[("/proc/meminfo", text)], None, None).available_bytes, 4 * GIB);
}

#[test]
fn unreadable_memory_is_an_error_that_names_the_file() {
    for files in [&[][..], &[("/proc/meminfo", "MemFree: 1 kB\n")]] {
        let message = memory(tree(files).path()).unwrap_err().to_string();
        assert!(message.contains("proc/meminfo"), "{message}");
    }
}

#[test]
fn usage_lines() {
    let tree = tree(&[(
        "/proc/self/status",
        "Name:\tx\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\nRssAnon:\t    1000 kB\n\
         RssFile:\t    2000 kB\nRssShmem:\t     500 kB\nVmSwap:\t      30 kB\n",
    )]);
    let expected = MemoryUsage {
        resident_bytes: 4000 << 10,
        peak_resident_bytes: 5000 << 10,
        anonymous_bytes: 1000 << 10,
        file_bytes: 2500 << 10,
        swap_bytes: 30 << 10,
        group_file_bytes: None,
    };
    assert_eq!(usage(tree.path()), expected);
    assert_eq!(usage(Path::new("/nonexistent")), MemoryUsage::default());
}

#[test]
fn file_pages_of_the_group_that_limits_us() {
    let v1 = [
        ("/proc/self/cgroup", "4:memory:/a/b\n"),
        ("/proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n"),
        ("/cg/a/b/memory.stat", "cache 5\nhierarchical_memory_limit 9000\ntotal_cache 70\n"),
        ("/cg/a/memory.limit_in_bytes", "9000\n"),
        ("/cg/a/memory.stat", "cache 1\nhierarchical_memory_limit 9000\ntotal_cache 800\n"),
    ];
    assert_eq!(usage(tree(&v1).path()).group_file_bytes, Some(800));
    let v2 = [
        V2[0],
        V2[1],
        ("/sys/fs/cgroup/a/b/memory.max", "4000\n"),
        ("/sys/fs/cgroup/a/b/memory.stat", "anon 900\nfile 2100\nfile_mapped 7\n"),
        ("/sys/fs/cgroup/a/memory.max", "8000\n"),
        ("/sys/fs/cgroup/a/memory.stat", "file 6000\n"),
    ];
    assert_eq!(usage(tree(&v2).path()).group_file_bytes, Some(2100));
    // Without a limit nothing is counted.
    assert_eq!(usage(tree(&[V2[0], V2[1], v2[3]]).path()).group_file_bytes, None);
}

#[test]
fn swap_traffic_is_pages_in_and_out() {
    let vmstat = "nr_free_pages 17\npswpin 3\npswpout 40\npswpin_zero 9\n";
    let root = tree(&[("/proc/vmstat", vmstat)]);
    assert_eq!(swap_traffic_pages(root.path()), Some(43));
    let root = tree(&[("/proc/vmstat", "nr_free_pages 17\n")]);
    assert_eq!(swap_traffic_pages(root.path()), None);
}
