//! One healthy machine, and every way in which it can be less so.

use super::*;
use crate::memory::Limit;

const GIB: u64 = 1 << 30;

fn healthy() -> Examination {
    Examination {
        facts: Facts {
            os: "linux",
            architecture: "x86_64",
            kernel: Some("6.8.0".to_owned()),
            cpu_model: Some("Test Processor".to_owned()),
            core_count: 8,
            isa: Isa::Avx2,
            instruction_sets: vec![Isa::Scalar, Isa::Avx2],
            amx_advertised: false,
            caches: vec![],
            huge_pages: HugePages::Madvise,
            memory: Some(Memory {
                total_bytes: 32 * GIB,
                available_bytes: 24 * GIB,
                limit: None,
                limit_headroom_bytes: None,
                swap_total_bytes: 0,
                swap_free_bytes: 0,
            }),
        },
        disk: Some(Ok(Disk {
            filesystem: Some("ext4".to_owned()),
            device: Some("/dev/nvme0n1p1".to_owned()),
            disk: Some("nvme0n1".to_owned()),
            rotational: Some(false),
            free_bytes: Some(500_000_000_000),
            ..Disk::default()
        })),
        open_file_limit: Some(4096),
    }
}

/// Changes the healthy machine and expects this status of one check, with this text in it, and `Ok` of the rest.
#[track_caller]
fn check(name: &str, status: Status, text: &str, change: impl FnOnce(&mut Examination)) {
    let mut examination = healthy();
    change(&mut examination);
    let checks = judge(&examination);
    let found = checks.iter().find(|check| check.name == name).expect(name);
    assert_eq!(found.status, status, "{found:?}");
    let all_text = format!("{} {}", found.detail, found.hint.as_deref().unwrap_or_default());
    assert!(all_text.contains(text), "{all_text:?} does not contain {text:?}");
    assert_eq!(found.hint.is_some(), status != Status::Ok, "{found:?}");
    for other in checks.iter().filter(|check| check.name != name) {
        assert_eq!(other.status, Status::Ok, "{other:?}");
    }
}

fn memory_of(examination: &mut Examination) -> &mut Memory {
    examination.facts.memory.as_mut().unwrap()
}

#[test]
fn a_healthy_machine_passes_every_check() {
    let checks = judge(&healthy());
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    let expected =
        ["cores", "instruction sets", "memory", "swap", "huge pages", "disk", "open files"];
    assert_eq!(names, expected);
    assert!(checks.iter().all(|check| check.status == Status::Ok), "{checks:?}");
}

#[test]
fn processors() {
    check("cores", Status::Ok, "8 cores, Test Processor", |_| {});
    check("cores", Status::Warn, "1 core,", |it| it.facts.core_count = 1);
    check("instruction sets", Status::Ok, "avx2 (of scalar, avx2)", |_| {});
    check("instruction sets", Status::Warn, "vector", |it| it.facts.isa = Isa::Scalar);
    check("instruction sets", Status::Warn, "self-test", |it| it.facts.amx_advertised = true);
    check("instruction sets", Status::Ok, "amx", |it| {
        it.facts.amx_advertised = true;
        it.facts.isa = Isa::Amx;
    });
}

#[test]
fn memory_and_limits() {
    check("memory", Status::Ok, "34.4 GB in all, 25.8 GB available, 23.2 GB", |_| {});
    check("memory", Status::Warn, "from disk", |it| memory_of(it).available_bytes = 4 * GIB);
    check("memory", Status::Fail, "raise", |it| memory_of(it).limit_headroom_bytes = Some(GIB));
    check("memory", Status::Warn, "--memory", |it| it.facts.memory = None);
    let limit = |source| Limit {
        bytes: 16 * GIB,
        used_bytes: GIB,
        file_bytes: 2 * GIB,
        source,
        path: "/sys/fs/cgroup/box".into(),
    };
    check(
        "memory limit",
        Status::Ok,
        "17.2 GB by cgroup v2, 1.1 GB of it in use, 2.1 GB of files",
        |it| {
            memory_of(it).limit = Some(limit(LimitSource::CgroupV2));
        },
    );
    check("memory limit", Status::Ok, "/sys/fs/cgroup/box", |it| {
        memory_of(it).limit = Some(limit(LimitSource::CgroupV1));
    });
    check("memory limit", Status::Warn, "ulimit -v", |it| {
        memory_of(it).limit = Some(limit(LimitSource::AddressSpace));
    });
}

#[test]
fn swap_space() {
    check("swap", Status::Ok, "none", |_| {});
    check("swap", Status::Ok, "0 B of 8.6 GB", |it| {
        (memory_of(it).swap_total_bytes, memory_of(it).swap_free_bytes) = (8 * GIB, 8 * GIB);
    });
    check("swap", Status::Ok, "7.5 GB of 8.6 GB", |it| {
        it.facts.os = "macos";
        (memory_of(it).swap_total_bytes, memory_of(it).swap_free_bytes) = (8 * GIB, GIB);
    });
    check("swap", Status::Warn, "7.5 GB of 8.6 GB", |it| {
        (memory_of(it).swap_total_bytes, memory_of(it).swap_free_bytes) = (8 * GIB, GIB);
    });
}

#[test]
fn huge_page_settings() {
    check("huge pages", Status::Ok, "always", |it| it.facts.huge_pages = HugePages::Always);
    check("huge pages", Status::Warn, "echo madvise", |it| {
        it.facts.huge_pages = HugePages::Never;
    });
    check("huge pages", Status::Warn, "kernel", |it| it.facts.huge_pages = HugePages::Unknown);
    check("huge pages", Status::Ok, "system", |it| {
        it.facts.huge_pages = HugePages::Unknown;
        it.facts.os = "macos";
    });
}

#[test]
fn disks() {
    fn disk_of(it: &mut Examination) -> &mut Disk {
        it.disk.as_mut().unwrap().as_mut().unwrap()
    }
    check("disk", Status::Ok, "ext4 on nvme0n1, 500.0 GB free", |_| {});
    check("disk", Status::Warn, "rotating", |it| disk_of(it).rotational = Some(true));
    check("disk", Status::Ok, "vda", |it| {
        disk_of(it).rotational = Some(true);
        disk_of(it).disk = Some("vda".to_owned());
    });
    check("disk", Status::Warn, "local SSD", |it| disk_of(it).filesystem = Some("nfs4".into()));
    check("disk", Status::Ok, "unknown device", |it| *disk_of(it) = Disk::default());
    check("disk", Status::Fail, "no such", |it| it.disk = Some(Err("no such folder".into())));
}

#[test]
fn open_file_limits() {
    check("open files", Status::Ok, "4096", |_| {});
    check("open files", Status::Warn, "ulimit -n", |it| it.open_file_limit = Some(256));
}

#[test]
fn this_machine_is_examined() {
    let folder = tempfile::tempdir().unwrap();
    let checks = checks(Some(folder.path()));
    assert!(checks.iter().any(|check| check.name == "disk" && check.status != Status::Fail));
    let missing = super::checks(Some(&folder.path().join("missing")));
    assert!(missing.iter().any(|check| check.name == "disk" && check.status == Status::Fail));
    assert!(super::checks(None).iter().all(|check| check.name != "disk"));
}
