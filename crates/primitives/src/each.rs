//! Functions of one element, given as closures and compiled for each instruction set.
//!
//! A closure that is inlined into a function with more vector instructions is compiled to them.

use super::isa::Isa;

/// Calls `rule(values, x)` for each element `x` of `of` with the elements of all values at its
/// position.
///
/// # Panics
/// If the lengths differ.
pub fn each<T: Copy, F: Fn([&mut T; N], T), const N: usize>(
    values: [&mut [T]; N],
    of: &[T],
    rule: &F,
) {
    let n = of.len();
    assert!(values.iter().all(|v| v.len() == n), "not {n} elements");
    let values = values.map(|v| v.as_mut_ptr());
    // SAFETY: one row of `n` elements each, the values exclusively borrowed.
    unsafe { each_of_tile(Isa::current(), values, of.as_ptr(), [n, n], [1, n], rule) };
}

/// Like [`each`], for rows and columns; strides are those of the values and of `of`.
///
/// # Safety
/// The CPU has the instruction set.
/// All matrices are readable for `rows` rows of `cols` columns, the values writable, and no other
/// thread touches them.
pub(crate) unsafe fn each_of_tile<T: Copy, F: Fn([&mut T; N], T), const N: usize>(
    isa: Isa,
    values: [*mut T; N],
    of: *const T,
    lds: [usize; 2],
    size: [usize; 2],
    rule: &F,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => rows_avx512(values, of, lds, size, rule),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => rows_avx2(values, of, lds, size, rule),
            _ => rows(values, of, lds, size, rule),
        }
    }
}

/// # Safety
/// As for [`each_of_tile`].
#[inline(always)]
unsafe fn rows<T: Copy, F: Fn([&mut T; N], T), const N: usize>(
    values: [*mut T; N],
    of: *const T,
    [ld, ld_of]: [usize; 2],
    [rows, cols]: [usize; 2],
    rule: &F,
) {
    for r in 0..rows {
        for c in 0..cols {
            // SAFETY: the caller's promise.
            unsafe {
                let x = *of.add(r * ld_of + c);
                rule(values.map(|v| &mut *v.add(r * ld + c)), x);
            }
        }
    }
}

/// Compiles [`rows`] for an instruction set beyond the target's baseline.
macro_rules! each_for {
    ($name:ident, $features:literal) => {
        /// # Safety
        /// As for [`each_of_tile`], on a processor with these features.
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        unsafe fn $name<T: Copy, F: Fn([&mut T; N], T), const N: usize>(
            values: [*mut T; N],
            of: *const T,
            lds: [usize; 2],
            size: [usize; 2],
            rule: &F,
        ) {
            // SAFETY: the caller's promise.
            unsafe { rows(values, of, lds, size, rule) }
        }
    };
}

each_for!(rows_avx2, "avx2");
each_for!(rows_avx512, "avx512f,avx512vl,avx512bw,avx512dq,avx2");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::testing::{each_isa, noise};

    #[test]
    fn every_isa_computes_the_same() {
        let rule = |[x, y]: [&mut f32; 2], z: f32| {
            *x = (*x * z).sqrt() + 1.0;
            *y -= *x * 0.1;
        };
        each_isa(|isa| {
            for n in [0, 1, 5, 16, 100] {
                let start =
                    || [noise(n, 1), noise(n, 2)].map(|v| v.iter().map(|x| x.abs()).collect());
                let of: Vec<f32> = noise(n, 3).iter().map(|x| x.abs()).collect();
                let [mut x, mut y]: [Vec<f32>; 2] = start();
                each([&mut x, &mut y], &of, &rule);
                let [mut want_x, mut want_y]: [Vec<f32>; 2] = start();
                for i in 0..n {
                    rule([&mut want_x[i], &mut want_y[i]], of[i]);
                }
                assert_eq!((x, y), (want_x, want_y), "{isa:?}, {n}");
            }
        });
    }
}
