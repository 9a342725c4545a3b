//! AMX tiles: whether they really work here, and the permission to use them.
//!
//! Three gates: CPUID and XCR0 must name the tiles, the kernel must grant their state (`arch_prctl`), and a
//! multiplication in a child process must come out right, because some virtual machines advertise AMX and
//! then fault on it. A tile configuration belongs to a thread and to the kernel that uses it: a thread that
//! multiplies configures.
//! Invariant: nothing in the calling process executes a tile instruction before the child has survived one.

use std::sync::OnceLock;

/// Whether the processor and the system name AMX-INT8, usable or not.
pub fn is_advertised() -> bool {
    tiles::is_advertised()
}

/// Whether AMX-INT8 is usable in this process. Requests the permission and tests it once, in about a
/// millisecond (a fork of a small process); call it before filling memory. Later calls read the answer.
pub fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(tiles::detect)
}

/// Gives the calling thread's eight tiles their rows and bytes in a row. Only where [`is_usable`]: elsewhere it panics.
pub fn configure(shapes: [(u8, u16); 8]) {
    assert!(is_usable(), "no AMX here");
    tiles::configure(shapes);
}

/// Gives the tile state of the calling thread back; what the tiles held is gone.
pub fn release() {
    tiles::release();
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod tiles {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    use rustix::process::{Pid, WaitOptions, waitpid};

    // System call numbers and constants of x86-64 Linux, which never change.
    const SYS_RT_SIGPROCMASK: usize = 14;
    const SYS_CLONE: usize = 56;
    const SYS_PRCTL: usize = 157;
    const SYS_ARCH_PRCTL: usize = 158;
    const SYS_EXIT_GROUP: usize = 231;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    const SIG_SETMASK: usize = 2;
    const PR_SET_DUMPABLE: usize = 4;
    /// A plain fork. No exit signal, so that the program's own SIGCHLD handling never sees this child.
    const CLONE_FLAGS: usize = 0;
    /// Wait also for children without an exit signal.
    const WAIT_ALL: u32 = 0x4000_0000;

    /// Rows of a tile; also its columns of 32-bit sums.
    const ROWS: usize = 16;
    const ROW_BYTES: usize = 64;

    pub(super) fn detect() -> bool {
        is_advertised() && request_permission() && child_multiplies_correctly()
    }

    pub(super) fn is_advertised() -> bool {
        const OSXSAVE: u32 = 1 << 27; // leaf 1 ecx
        const AMX_TILE_AND_INT8: u32 = 1 << 24 | 1 << 25; // leaf 7 edx
        const XTILECFG_AND_XTILEDATA: u64 = 1 << 17 | 1 << 18; // XCR0
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return false;
        }
        // SAFETY: OSXSAVE says that the system has enabled xgetbv.
        let xcr0 = unsafe { _xgetbv(0) };
        let features = __cpuid_count(7, 0).edx;
        features & AMX_TILE_AND_INT8 == AMX_TILE_AND_INT8
            && xcr0 & XTILECFG_AND_XTILEDATA == XTILECFG_AND_XTILEDATA
    }

    /// Asks Linux to save the 8 KiB of tile state for this process. A second call is harmless.
    fn request_permission() -> bool {
        // SAFETY: these arguments touch no memory.
        let result =
            unsafe { system_call([SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA, 0, 0]) };
        result == 0
    }

    /// What `ldtilecfg` reads.
    #[repr(C, align(64))]
    struct TileConfig {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl TileConfig {
        fn new(shapes: [(u8, u16); 8]) -> TileConfig {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            for (tile, shape) in shapes.into_iter().enumerate() {
                (rows[tile], row_bytes[tile]) = shape;
            }
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
        }

        /// All tiles at their full 16 rows of 64 bytes.
        fn full() -> TileConfig {
            TileConfig::new([(ROWS as u8, ROW_BYTES as u16); 8])
        }
    }

    pub(super) fn configure(shapes: [(u8, u16); 8]) {
        let config = TileConfig::new(shapes);
        // SAFETY: reads 64 bytes; the processor has tiles and the process their state. Shapes that do not exist fault.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly)) };
    }

    pub(super) fn release() {
        if super::is_usable() {
            // SAFETY: nothing is read from the tiles afterwards.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    #[repr(C, align(64))]
    struct Tile<T, const N: usize>([T; N]);

    fn child_multiplies_correctly() -> bool {
        let config = TileConfig::full();
        // Unsigned [row, k] times signed [k / 4, column, 4], with both signs and both extremes.
        let a: Tile<u8, 1024> = Tile(std::array::from_fn(|i| (i * 7 + i / 64 * 31) as u8));
        let b: Tile<i8, 1024> = Tile(std::array::from_fn(|i| (i * 13 + i / 64 * 5) as u8 as i8));
        let expected = Tile(multiply_scalar(&a.0, &b.0));
        child_agrees(&config, &a, &b, &expected)
    }

    fn multiply_scalar(a: &[u8; 1024], b: &[i8; 1024]) -> [i32; 256] {
        std::array::from_fn(|cell| {
            let (row, column) = (cell / ROWS, cell % ROWS);
            (0..ROW_BYTES)
                .map(|k| {
                    let b_index = k / 4 * ROW_BYTES + column * 4 + k % 4;
                    i32::from(a[row * ROW_BYTES + k]) * i32::from(b[b_index])
                })
                .sum()
        })
    }

    /// Multiplies in a child process and says whether it exited with the expected sums.
    ///
    /// The child is born, works and exits inside one `asm!` block: it uses registers and its own copy of the
    /// buffers, no stack, no allocator and no lock that another thread may have held during the fork.
    /// All signals are blocked meanwhile, so no handler of the program runs in the child; a fault on a
    /// blocked signal kills it, which is the answer we want to see. Memory is copied, not shared: when a
    /// process dumps core, Linux before 5.16 kills every process that shares its memory.
    fn child_agrees(
        config: &TileConfig,
        a: &Tile<u8, 1024>,
        b: &Tile<i8, 1024>,
        expected: &Tile<i32, 256>,
    ) -> bool {
        let mut sums: Tile<i32, 256> = Tile([i32::MIN; 256]);
        let everything: u64 = !0;
        let mut previous: u64 = 0;
        let mask_bytes = size_of::<u64>();
        // SAFETY: both masks are eight bytes, which is the size given.
        let blocked = unsafe {
            let new = (&raw const everything).expose_provenance();
            let old = (&raw mut previous).expose_provenance();
            system_call([SYS_RT_SIGPROCMASK, SIG_SETMASK, new, old, mask_bytes])
        };
        if blocked != 0 {
            return false;
        }

        let child: isize;
        // SAFETY: see above for why the child is harmless; it never leaves this block. The parent falls
        // through with the process id or an error in rax. The tile instructions run in the child only, so
        // the parent's tile registers do not change.
        unsafe {
            asm!(
                "syscall", // clone
                "test rax, rax",
                "jnz 3f",
                // A fault here is an answer, not a bug worth a core file.
                "mov eax, {prctl}",
                "mov edi, {set_dumpable}",
                "syscall",
                "ldtilecfg [{config}]",
                "tilezero tmm0",
                "tileloadd tmm1, [{a} + {stride}*1]",
                "tileloadd tmm2, [{b} + {stride}*1]",
                "tdpbusd tmm0, tmm1, tmm2",
                "tilestored [{sums} + {stride}*1], tmm0",
                "tilerelease",
                "mov rsi, {sums}",
                "mov rdi, {expected}",
                "mov ecx, 1024",
                "repe cmpsb",
                "setne al",
                "movzx edi, al",
                "mov eax, {exit_group}",
                "syscall",
                "ud2",
                "3:",
                config = in(reg) config,
                a = in(reg) a,
                b = in(reg) b,
                sums = in(reg) &raw mut sums,
                expected = in(reg) expected,
                stride = in(reg) ROW_BYTES,
                prctl = const SYS_PRCTL,
                set_dumpable = const PR_SET_DUMPABLE,
                exit_group = const SYS_EXIT_GROUP,
                inlateout("rax") SYS_CLONE as isize => child,
                in("rdi") CLONE_FLAGS,
                in("rsi") 0usize, // the same stack pointer
                // Not `lateout`: the system call spoils these before the child reads its inputs.
                out("rcx") _,
                out("r11") _,
            );
        }

        // SAFETY: as above; this puts the mask back that was there.
        unsafe {
            let old = (&raw const previous).expose_provenance();
            system_call([SYS_RT_SIGPROCMASK, SIG_SETMASK, old, 0, mask_bytes]);
        }
        exited_cleanly(child)
    }

    fn exited_cleanly(child: isize) -> bool {
        let Some(pid) = i32::try_from(child).ok().filter(|&pid| pid > 0).and_then(Pid::from_raw)
        else {
            return false;
        };
        loop {
            match waitpid(Some(pid), WaitOptions::from_bits_retain(WAIT_ALL)) {
                Ok(Some((_, status))) => return status.exit_status() == Some(0),
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) | Err(_) => return false,
            }
        }
    }

    /// A system call of up to four arguments, after its number.
    ///
    /// # Safety
    /// Pointers among the arguments must be valid for what the call does with them.
    unsafe fn system_call([number, first, second, third, fourth]: [usize; 5]) -> isize {
        let result: isize;
        // SAFETY: the caller answers for the arguments; the instruction itself changes rax, rcx and r11 only.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") number as isize => result,
                in("rdi") first,
                in("rsi") second,
                in("rdx") third,
                in("r10") fourth,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn scalar_product_of_ones_counts_the_columns() {
            assert_eq!(multiply_scalar(&[1; 1024], &[-1; 1024]), [-64; 256]);
        }

        #[test]
        fn the_child_survives_where_the_kernel_grants_tiles() {
            // Linux itself lists amx_int8 only when the processor and its own XSAVE support agree.
            let listed = std::fs::read_to_string("/proc/cpuinfo").unwrap().contains(" amx_int8");
            assert_eq!(is_advertised(), listed);
            if listed && request_permission() {
                assert!(child_multiplies_correctly());
            }
        }

        #[test]
        fn a_child_that_faults_is_an_answer_and_not_a_crash() {
            if !(is_advertised() && request_permission()) {
                return;
            }
            // Palette 9 does not exist: ldtilecfg raises a general protection fault, SIGSEGV in the child.
            let config = TileConfig { palette: 9, ..TileConfig::full() };
            assert!(!child_agrees(&config, &Tile([0; 1024]), &Tile([0; 1024]), &Tile([0; 256])));
        }

        #[test]
        fn a_child_with_wrong_sums_is_refused() {
            if !(is_advertised() && request_permission()) {
                return;
            }
            let config = TileConfig::full();
            let (ones, minus_ones) = (Tile([1; 1024]), Tile([-1; 1024]));
            assert!(child_agrees(&config, &ones, &minus_ones, &Tile([-64; 256])));
            let mut expected = Tile([-64; 256]);
            expected.0[255] = -63;
            assert!(!child_agrees(&config, &ones, &minus_ones, &expected));
        }

        #[test]
        fn many_threads_may_ask_at_once() {
            let first = crate::amx::is_usable();
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        assert_eq!(detect(), first);
                        assert_eq!(crate::amx::is_usable(), first);
                    });
                }
            });
        }
    }
}

/// Only Linux on x86-64 has both the instructions and a way to request them.
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod tiles {
    pub(super) fn is_advertised() -> bool {
        false
    }

    pub(super) fn detect() -> bool {
        false
    }

    pub(super) fn configure(_: [(u8, u16); 8]) {}

    pub(super) fn release() {}
}
