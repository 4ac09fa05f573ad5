//! Intel's Advanced Matrix Extensions: products of tiles of sixteen rows by sixteen columns in one
//! instruction (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18).
//!
//! A step of the reduction has 64 bytes of each row, and sixteen rows of sixteen columns with four bytes
//! each of the right side: the order in which VNNI reads its weights, too.

use std::sync::OnceLock;

/// Rows and columns of a tile.
pub(crate) const SIDE: usize = 16;
/// Rows and columns of the largest block of tiles.
pub(crate) const BLOCK: usize = 2 * SIDE;
/// Bytes of a row in a tile.
pub(crate) const CHUNK: usize = 64;

/// Whether the CPU multiplies tiles, and the system lets this process do so.
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only kinds of that architecture ask for it")
)]
pub(crate) struct Support {
    /// Tiles of 8-bit integers.
    pub int8: bool,
    /// Tiles of `bfloat16` numbers.
    pub bf16: bool,
}

impl Support {
    /// Returns what this machine has. The first call asks the system for the tiles' state.
    pub(crate) fn current() -> Support {
        static SUPPORT: OnceLock<Support> = OnceLock::new();
        *SUPPORT.get_or_init(detect)
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[allow(
    unused_unsafe,
    reason = "reading the CPU's features was unsafe before Rust 1.94"
)]
fn detect() -> Support {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    /// `ARCH_REQ_XCOMP_PERM` and the state component of tile data (Linux: `asm/prctl.h`).
    const REQUEST: libc::c_long = 0x1023;
    const TILE_DATA: libc::c_long = 18;
    // SAFETY: all CPUs of the architecture have the instruction.
    let (highest, bits) = unsafe { (__cpuid(0).eax, __cpuid_count(7, 0).edx) };
    if highest < 7 {
        return Support::default();
    }
    let has = |bit: u32| bits >> bit & 1 == 1;
    if !has(24) {
        return Support::default();
    }
    // SAFETY: the call takes two numbers and enlarges the state that the system saves for this process.
    let granted = unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST, TILE_DATA) } == 0;
    Support {
        int8: granted && has(25),
        bf16: granted && has(22),
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn detect() -> Support {
    Support::default()
}

/// A block of one or two tiles of rows and of columns.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "tiles read them")
)]
pub(crate) struct Block {
    /// Rows of `steps` times [`CHUNK`] bytes.
    pub rows: *const u8,
    /// Bytes from a row to the next.
    pub ld_rows: usize,
    /// For each step sixteen rows of columns, four bytes each.
    pub columns: *const i32,
    /// Bytes from a row of columns to the next.
    pub ld_columns: usize,
    pub steps: usize,
    /// What the sums start with: four bytes each.
    pub start: *const i32,
    /// Bytes from a row of starts to the next; zero if all rows start with the same.
    pub ld_start: usize,
    /// Where the sums go: four bytes each.
    pub out: *mut i32,
    /// Bytes from a row of sums to the next.
    pub ld_out: usize,
}

/// The numbers in tiles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Unsigned times signed bytes, four to a sum of 32 bits.
    Codes,
    /// Pairs of `bfloat16`, added to floats.
    Bf16,
}

/// One block: the lines before the loop, in it and after it.
#[cfg(target_arch = "x86_64")]
macro_rules! block {
    ($block:expr, [$($before:expr),*], [$($step:expr),*], [$($after:expr),*]) => {{
        let b: &Block = $block;
        if b.steps > 0 {
            std::arch::asm!(
                "# {out_below}",
                $($before,)*
                "2:",
                $($step,)*
                "add {rows}, 64",
                "add {below}, 64",
                "add {columns}, {pace}",
                "dec {steps}",
                "jnz 2b",
                $($after,)*
                rows = inout(reg) b.rows => _,
                below = inout(reg) b.rows.wrapping_add(SIDE * b.ld_rows) => _,
                ld_rows = in(reg) b.ld_rows,
                columns = inout(reg) b.columns => _,
                ld_columns = in(reg) b.ld_columns,
                pace = in(reg) SIDE * b.ld_columns,
                steps = inout(reg) b.steps => _,
                start = inout(reg) b.start => _,
                ld_start = in(reg) b.ld_start,
                out = in(reg) b.out,
                ld_out = in(reg) b.ld_out,
                out_below = in(reg) b.out.cast::<u8>().wrapping_add(SIDE * b.ld_out),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack)
            );
        }
    }};
}

/// Two tiles of rows and two of columns, four sums.
#[cfg(target_arch = "x86_64")]
macro_rules! two_by_two {
    ($multiply:literal, $block:expr) => {
        block!(
            $block,
            [
                "tileloadd tmm0, [{start} + {ld_start}*1]",
                "tileloadd tmm1, [{start} + {ld_start}*1 + 64]",
                "lea {start}, [{start} + 8*{ld_start}]",
                "lea {start}, [{start} + 8*{ld_start}]",
                "tileloadd tmm2, [{start} + {ld_start}*1]",
                "tileloadd tmm3, [{start} + {ld_start}*1 + 64]"
            ],
            [
                "tileloadd tmm6, [{columns} + {ld_columns}*1]",
                "tileloadd tmm4, [{rows} + {ld_rows}*1]",
                "tileloadd tmm7, [{columns} + {ld_columns}*1 + 64]",
                "tileloadd tmm5, [{below} + {ld_rows}*1]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                concat!($multiply, " tmm1, tmm4, tmm7"),
                concat!($multiply, " tmm2, tmm5, tmm6"),
                concat!($multiply, " tmm3, tmm5, tmm7")
            ],
            [
                "tilestored [{out} + {ld_out}*1], tmm0",
                "tilestored [{out} + {ld_out}*1 + 64], tmm1",
                "tilestored [{out_below} + {ld_out}*1], tmm2",
                "tilestored [{out_below} + {ld_out}*1 + 64], tmm3"
            ]
        )
    };
}

/// Two tiles of rows and one of columns.
#[cfg(target_arch = "x86_64")]
macro_rules! two_by_one {
    ($multiply:literal, $block:expr) => {
        block!(
            $block,
            [
                "tileloadd tmm0, [{start} + {ld_start}*1]",
                "lea {start}, [{start} + 8*{ld_start}]",
                "lea {start}, [{start} + 8*{ld_start}]",
                "tileloadd tmm2, [{start} + {ld_start}*1]"
            ],
            [
                "tileloadd tmm6, [{columns} + {ld_columns}*1]",
                "tileloadd tmm4, [{rows} + {ld_rows}*1]",
                "tileloadd tmm5, [{below} + {ld_rows}*1]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                concat!($multiply, " tmm2, tmm5, tmm6")
            ],
            [
                "tilestored [{out} + {ld_out}*1], tmm0",
                "tilestored [{out_below} + {ld_out}*1], tmm2"
            ]
        )
    };
}

/// One tile of rows and two of columns.
#[cfg(target_arch = "x86_64")]
macro_rules! one_by_two {
    ($multiply:literal, $block:expr) => {
        block!(
            $block,
            [
                "tileloadd tmm0, [{start} + {ld_start}*1]",
                "tileloadd tmm1, [{start} + {ld_start}*1 + 64]"
            ],
            [
                "tileloadd tmm6, [{columns} + {ld_columns}*1]",
                "tileloadd tmm4, [{rows} + {ld_rows}*1]",
                "tileloadd tmm7, [{columns} + {ld_columns}*1 + 64]",
                concat!($multiply, " tmm0, tmm4, tmm6"),
                concat!($multiply, " tmm1, tmm4, tmm7")
            ],
            [
                "tilestored [{out} + {ld_out}*1], tmm0",
                "tilestored [{out} + {ld_out}*1 + 64], tmm1"
            ]
        )
    };
}

/// One tile.
#[cfg(target_arch = "x86_64")]
macro_rules! one_by_one {
    ($multiply:literal, $block:expr) => {
        block!(
            $block,
            ["tileloadd tmm0, [{start} + {ld_start}*1]"],
            [
                "tileloadd tmm6, [{columns} + {ld_columns}*1]",
                "tileloadd tmm4, [{rows} + {ld_rows}*1]",
                concat!($multiply, " tmm0, tmm4, tmm6")
            ],
            ["tilestored [{out} + {ld_out}*1], tmm0"]
        )
    };
}

/// This thread's tiles, configured as whole ones.
pub(crate) struct Tiles(std::marker::PhantomData<*const ()>);

#[cfg(target_arch = "x86_64")]
impl Tiles {
    /// # Safety
    /// [`Support`] has the numbers that will be multiplied, and this thread has no other `Tiles`.
    pub(crate) unsafe fn new() -> Tiles {
        #[repr(C, align(64))]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(CHUNK as u16);
        config.rows[..8].fill(SIDE as u8);
        // SAFETY: the CPU has the instruction, as the caller promises; the configuration is valid.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags, readonly)
            );
        }
        Tiles(std::marker::PhantomData)
    }

    /// Computes a block of `n_rows` and `n_columns` tiles, one or two of each.
    ///
    /// # Safety
    /// The pointers of `block` are valid for these tiles.
    #[inline]
    pub(crate) unsafe fn multiply(
        &self,
        numbers: Numbers,
        [n_rows, n_columns]: [usize; 2],
        block: &Block,
    ) {
        // SAFETY: the tiles are configured; the rest is the caller's promise.
        unsafe {
            match (numbers, n_rows, n_columns) {
                (Numbers::Codes, 2, 2) => two_by_two!("tdpbusd", block),
                (Numbers::Codes, 2, _) => two_by_one!("tdpbusd", block),
                (Numbers::Codes, _, 2) => one_by_two!("tdpbusd", block),
                (Numbers::Codes, ..) => one_by_one!("tdpbusd", block),
                (Numbers::Bf16, 2, 2) => two_by_two!("tdpbf16ps", block),
                (Numbers::Bf16, 2, _) => two_by_one!("tdpbf16ps", block),
                (Numbers::Bf16, _, 2) => one_by_two!("tdpbf16ps", block),
                (Numbers::Bf16, ..) => one_by_one!("tdpbf16ps", block),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the CPU has the instruction, as `new` required, and these tiles are the thread's only ones.
        unsafe { std::arch::asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Tiles {
    /// # Safety
    /// As elsewhere; no such machine has [`Support`].
    pub(crate) unsafe fn new() -> Tiles {
        Tiles(std::marker::PhantomData)
    }

    /// # Safety
    /// As elsewhere.
    pub(crate) unsafe fn multiply(&self, _: Numbers, _: [usize; 2], _: &Block) {
        unreachable!("no tiles without support");
    }
}
