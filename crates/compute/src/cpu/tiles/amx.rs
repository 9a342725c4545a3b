//! The AMX tile unit, through stable `asm!`: 32 weight rows by 16 tokens by one block of 32 columns.

use std::arch::asm;

use super::Integers;

/// Sets this thread's tiles: 0–1 codes (16 × 32 bytes), 2–3 planes (8 × 64), 4–7 sums (16 × 64).
pub(super) fn configure() {
    let [codes, planes, sums] = [(16, 32), (8, 64), (16, 64)];
    machine::amx::configure([codes, codes, planes, planes, sums, sums, sums, sums]);
}

/// Products of two 16-row panels with both planes of one block.
///
/// # Safety
/// Tiles are configured; `codes` and `planes` point to 1,024 bytes each.
#[inline(always)]
pub(super) unsafe fn products(codes: *const u8, planes: *const i8, out: &mut Integers) {
    let out = std::ptr::from_mut(out).cast::<u8>();
    // SAFETY: loads 2 × 16 rows of 32 bytes and 2 × 8 rows of 64, stores 4 × 16 rows of 64.
    unsafe {
        asm!(
            "tileloadd tmm2, [{planes} + {wide}*1]",
            "tileloadd tmm0, [{codes} + {narrow}*1]",
            "tilezero tmm4",
            "tdpbusd tmm4, tmm0, tmm2",
            "tileloadd tmm3, [{planes} + {wide}*1 + 512]",
            "tilezero tmm6",
            "tdpbusd tmm6, tmm0, tmm3",
            "tileloadd tmm1, [{codes} + {narrow}*1 + 512]",
            "tilezero tmm5",
            "tdpbusd tmm5, tmm1, tmm2",
            "tilezero tmm7",
            "tdpbusd tmm7, tmm1, tmm3",
            "tilestored [{out} + {wide}*1], tmm4",
            "tilestored [{out} + {wide}*1 + 2048], tmm6",
            "tilestored [{out} + {wide}*1 + 1024], tmm5",
            "tilestored [{out} + {wide}*1 + 3072], tmm7",
            planes = in(reg) planes,
            codes = in(reg) codes,
            out = in(reg) out,
            wide = in(reg) 64usize,
            narrow = in(reg) 32usize,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
