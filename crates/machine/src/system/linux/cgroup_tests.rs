//! Fixture trees in the shapes that real systems have.

use super::LimitSource::{CgroupV1, CgroupV2};
use super::*;
use crate::system::linux::procfs::fixture::tree;

/// Expects exactly these limits, innermost first: (bytes, used bytes, source, path below the root).
#[track_caller]
fn check(files: &[(&str, &str)], expected: &[(u64, u64, LimitSource, &str)]) {
    let tree = tree(files);
    let found: Vec<_> = limits(tree.path())
        .into_iter()
        .map(|limit| {
            let path = format!("/{}", limit.path.strip_prefix(tree.path()).unwrap().display());
            (limit.bytes, limit.used_bytes, limit.source, path.trim_end_matches('/').to_owned())
        })
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|&(bytes, used, source, path)| (bytes, used, source, path.to_owned()))
        .collect();
    assert_eq!(found, expected);
}

const V2_MOUNT: (&str, &str) = (
    "/proc/self/mountinfo",
    "27 1 254:0 / / rw - ext4 /dev/vda rw\n30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n",
);
const V1_MOUNT: (&str, &str) = (
    "/proc/self/mountinfo",
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
     32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
     35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
);
const V1_UNLIMITED: &str = "9223372036854771712\n";

#[test]
fn no_groups_at_all() {
    check(&[], &[]);
    check(&[("/proc/self/cgroup", "0::/\n")], &[]);
    check(&[V2_MOUNT], &[]);
}

#[test]
fn v2_without_limits() {
    let files = [
        ("/proc/self/cgroup", "0::/user.slice\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ("/sys/fs/cgroup/user.slice/memory.high", "max\n"),
    ];
    check(&files, &[]);
}

#[test]
fn v2_nested_groups_are_all_read() {
    let files = [
        ("/proc/self/cgroup", "0::/a/b/c\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/b/c/memory.max", "max\n"),
        ("/sys/fs/cgroup/a/b/memory.max", "4000\n"),
        ("/sys/fs/cgroup/a/b/memory.current", "3000\n"),
        (
            "/sys/fs/cgroup/a/b/memory.stat",
            "anon 900\nfile 2100\nactive_file 1000\ninactive_file 500\nslab_reclaimable 200\n",
        ),
        ("/sys/fs/cgroup/a/memory.max", "9000\n"),
    ];
    let expected =
        [(4000, 1300, CgroupV2, "/sys/fs/cgroup/a/b"), (9000, 0, CgroupV2, "/sys/fs/cgroup/a")];
    check(&files, &expected);
}

#[test]
fn v2_high_counts_when_it_is_lower() {
    let files = [
        ("/proc/self/cgroup", "0::/a\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/memory.max", "9000\n"),
        ("/sys/fs/cgroup/a/memory.high", "7000\n"),
    ];
    check(&files, &[(7000, 0, CgroupV2, "/sys/fs/cgroup/a")]);
    let files = [
        ("/proc/self/cgroup", "0::/a\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/memory.max", "max\n"),
        ("/sys/fs/cgroup/a/memory.high", "7000\n"),
    ];
    check(&files, &[(7000, 0, CgroupV2, "/sys/fs/cgroup/a")]);
}

#[test]
fn v2_private_namespace_sees_its_group_as_the_root() {
    let files = [
        ("/proc/self/cgroup", "0::/\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/memory.max", "5000\n"),
        ("/sys/fs/cgroup/memory.current", "100\n"),
    ];
    check(&files, &[(5000, 100, CgroupV2, "/sys/fs/cgroup")]);
}

#[test]
fn v2_path_outside_the_namespace_falls_back_to_the_mount_point() {
    let files = [
        ("/proc/self/cgroup", "0::/../../other\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/memory.max", "5000\n"),
        ("/sys/fs/other/memory.max", "1\n"),
    ];
    check(&files, &[(5000, 0, CgroupV2, "/sys/fs/cgroup")]);
}

#[test]
fn v2_missing_inner_folders_are_skipped() {
    let files = [
        ("/proc/self/cgroup", "0::/a/gone/deeper\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/memory.max", "5000\n"),
    ];
    check(&files, &[(5000, 0, CgroupV2, "/sys/fs/cgroup/a")]);
}

#[test]
fn v2_more_charged_file_pages_than_usage_is_zero() {
    let files = [
        ("/proc/self/cgroup", "0::/a\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/memory.max", "5000\n"),
        ("/sys/fs/cgroup/a/memory.current", "100\n"),
        ("/sys/fs/cgroup/a/memory.stat", "inactive_file 200\n"),
    ];
    check(&files, &[(5000, 0, CgroupV2, "/sys/fs/cgroup/a")]);
}

#[test]
fn v1_without_limits() {
    let files = [
        ("/proc/self/cgroup", "4:memory:/x\n1:cpu:/y\n"),
        V1_MOUNT,
        ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", V1_UNLIMITED),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", V1_UNLIMITED),
    ];
    check(&files, &[]);
}

#[test]
fn v1_nested_groups_are_all_read() {
    let files = [
        ("/proc/self/cgroup", "5:devices:/\n4:hugetlb,memory:/x/y\n"),
        V1_MOUNT,
        ("/sys/fs/cgroup/memory/x/y/memory.limit_in_bytes", "8000\n"),
        ("/sys/fs/cgroup/memory/x/y/memory.usage_in_bytes", "6000\n"),
        (
            "/sys/fs/cgroup/memory/x/y/memory.stat",
            "active_file 1\ntotal_active_file 1000\ntotal_inactive_file 2000\n",
        ),
        ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "6500\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", V1_UNLIMITED),
    ];
    let expected = [
        (8000, 3000, CgroupV1, "/sys/fs/cgroup/memory/x/y"),
        (6500, 0, CgroupV1, "/sys/fs/cgroup/memory/x"),
    ];
    check(&files, &expected);
}

#[test]
fn v1_container_shows_its_own_group_at_the_mount_point() {
    // Docker on version 1: the path names the host's group, and the mount shows only that group.
    let files = [
        ("/proc/self/cgroup", "4:memory:/docker/abc\n"),
        (
            "/proc/self/mountinfo",
            "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        ),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n"),
        ("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1\n"),
    ];
    check(&files, &[(3000, 0, CgroupV1, "/sys/fs/cgroup/memory")]);
}

#[test]
fn v1_hidden_groups_above_limit_too() {
    let files = [
        ("/proc/self/cgroup", "4:memory:/\n"),
        (
            "/proc/self/mountinfo",
            "35 31 0:32 /lxc/box /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        ),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", V1_UNLIMITED),
        ("/sys/fs/cgroup/memory/memory.stat", "hierarchical_memory_limit 2500\n"),
    ];
    check(&files, &[(2500, 0, CgroupV1, "/sys/fs/cgroup/memory")]);
}

#[test]
fn hybrid_reads_memory_from_v1_and_nothing_from_a_v2_mount_without_controllers() {
    let files = [
        ("/proc/self/cgroup", "4:memory:/job\n1:name=systemd:/\n0::/job\n"),
        (
            "/proc/self/mountinfo",
            "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
             40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "3000\n"),
        ("/sys/fs/cgroup/unified/job/cgroup.procs", "1\n"),
    ];
    check(&files, &[(3000, 0, CgroupV1, "/sys/fs/cgroup/memory/job")]);
}

#[test]
fn hybrid_with_the_memory_controller_on_v2() {
    let files = [
        ("/proc/self/cgroup", "1:cpu:/\n0::/job\n"),
        (
            "/proc/self/mountinfo",
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        ),
        ("/sys/fs/cgroup/unified/job/memory.max", "3000\n"),
    ];
    check(&files, &[(3000, 0, CgroupV2, "/sys/fs/cgroup/unified/job")]);
}

#[test]
fn the_widest_of_two_views_is_read() {
    let files = [
        ("/proc/self/cgroup", "0::/a/b\n"),
        (
            "/proc/self/mountinfo",
            "41 31 0:38 /a/b /narrow rw - cgroup2 cgroup2 rw\n\
             42 31 0:38 / /wide rw - cgroup2 cgroup2 rw\n\
             43 31 0:38 /unrelated /other rw - cgroup2 cgroup2 rw\n",
        ),
        ("/narrow/memory.max", "2000\n"),
        ("/wide/a/b/memory.max", "2000\n"),
        ("/wide/a/memory.max", "1000\n"),
        ("/other/memory.max", "1\n"),
    ];
    check(&files, &[(2000, 0, CgroupV2, "/wide/a/b"), (1000, 0, CgroupV2, "/wide/a")]);
}

#[test]
fn nonsense_is_no_limit() {
    let files = [
        ("/proc/self/cgroup", "garbage\n0::/a\n:::\n4:memory\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/a/memory.max", "12 apples\n"),
    ];
    check(&files, &[]);
}

#[test]
fn a_path_with_colons_is_kept_whole() {
    let files = [
        ("/proc/self/cgroup", "0::/system.slice/app:1\n"),
        V2_MOUNT,
        ("/sys/fs/cgroup/system.slice/app:1/memory.max", "5000\n"),
    ];
    check(&files, &[(5000, 0, CgroupV2, "/sys/fs/cgroup/system.slice/app:1")]);
}
