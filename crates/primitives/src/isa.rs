//! The vector instructions to use, detected once.

use std::sync::OnceLock;

/// A set of vector instructions that the crate has code for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The baseline of the compilation target.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, VL, BW and DQ.
    Avx512,
}

impl Isa {
    /// Returns the best instruction set of this CPU.
    pub fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq");
            return if wide { Isa::Avx512 } else { Isa::Avx2 };
        }
        Isa::Portable
    }

    /// Returns whether the environment variable `FERROFLOW_SIMD` names the instruction set in use: then its
    /// additions, the tiles of AVX-512 and the AVX-VNNI of AVX2, are not used.
    pub(crate) fn is_limited() -> bool {
        #[cfg(test)]
        if testing::is_limited() {
            return true;
        }
        static NAMED: OnceLock<Option<String>> = OnceLock::new();
        let named = NAMED.get_or_init(|| std::env::var("FERROFLOW_SIMD").ok());
        let name = match Isa::current() {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        };
        named.as_deref() == Some(name)
    }

    /// Returns the instruction set in use: the CPU's best, or a lower one named by the environment
    /// variable `FERROFLOW_SIMD`: `portable`, `avx2`, `avx_vnni` (AVX2 with that addition, if the CPU has it) or,
    /// without tiles, `avx512`.
    pub fn current() -> Isa {
        #[cfg(test)]
        if let Some(isa) = testing::forced() {
            return isa;
        }
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(|| {
            let best = Isa::detect();
            match std::env::var("FERROFLOW_SIMD").as_deref() {
                Ok("portable") => Isa::Portable,
                Ok("avx2" | "avx_vnni") => best.min(Isa::Avx2),
                _ => best,
            }
        })
    }
}

/// Calls `f`; what is inlined into it is compiled for each instruction set.
///
/// Loops over slices gain by it. What they compute does not change: products and sums are not fused.
#[inline]
pub fn vectorized<R>(f: impl FnOnce() -> R) -> R {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the instructions.
        Isa::Avx512 => unsafe { in_avx512(f) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the instructions.
        Isa::Avx2 => unsafe { in_avx2(f) },
        _ => f(),
    }
}

/// # Safety
/// The CPU has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn in_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// # Safety
/// The CPU has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2")]
unsafe fn in_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// A computation that is compiled for each instruction set, as what [`vectorized`] calls is. Closures are inlined
/// only if they are small; implementations of this are, whatever their size, if they are `#[inline(always)]`.
pub(crate) trait Loops {
    fn run(self);
}

/// Runs loops with the instruction set in use.
#[inline]
pub(crate) fn run(loops: impl Loops) {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the instructions.
        Isa::Avx512 => unsafe { run_in_avx512(loops) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the CPU has the instructions.
        Isa::Avx2 => unsafe { run_in_avx2(loops) },
        _ => loops.run(),
    }
}

/// # Safety
/// The CPU has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_in_avx2(loops: impl Loops) {
    loops.run();
}

/// # Safety
/// The CPU has these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2")]
unsafe fn run_in_avx512(loops: impl Loops) {
    loops.run();
}

/// Runs a test with every instruction set of the CPU.
#[cfg(test)]
pub(crate) mod testing {
    use super::Isa;
    use std::cell::Cell;

    thread_local! {
        static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
        static LIMITED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn is_limited() -> bool {
        LIMITED.get()
    }

    pub(super) fn forced() -> Option<Isa> {
        FORCED.get()
    }

    /// Runs `f` for every instruction set of this CPU, with its additions and without them.
    pub(crate) fn each_isa(mut f: impl FnMut(Isa)) {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            for is_limited in [false, true] {
                if isa <= Isa::detect() && !(is_limited && isa == Isa::Portable) {
                    FORCED.set(Some(isa));
                    LIMITED.set(is_limited);
                    f(isa);
                }
            }
        }
        FORCED.set(None);
        LIMITED.set(false);
    }

    /// Two threads for the parallel paths.
    pub(crate) struct TwoThreads;

    impl ferroflow_sync::Parallelism for TwoThreads {
        fn width(&self) -> usize {
            2
        }
        fn run_blocks(&self, n_blocks: usize, f: &(dyn Fn(usize) + Sync)) {
            std::thread::scope(|s| {
                s.spawn(move || (0..n_blocks).step_by(2).for_each(f));
                (1..n_blocks).step_by(2).for_each(f);
            });
        }
    }

    /// Deterministic numbers in `-1..1`.
    pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
        let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
        (0..n)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 17;
                x ^= x << 5;
                x as i32 as f32 / i32::MAX as f32
            })
            .collect()
    }
}
