//! The functions of each instruction set behind one table of pointers.

use super::conv::slide::{MAX_STRIDE, slide};
use super::conv::winograd::tile::{
    FilterJob, GradientJob, InputJob, OutputJob, filter_tile, gradient_tile, input_tile,
    output_tile,
};
use super::depthwise::kernel::{
    DepthwiseJob, FilterGradientJob, LONG, PIXELS, filter_gradient, tiles,
};
use super::elementwise;
use super::gemm::dots::{DotsJob, dots};
use super::gemm::kernel::{PackJob, Sweep, pack_rows, sweep};
use super::gemm::stream::{StreamJob, stream};
use super::isa::Isa;
use super::math::{Fun, Side, map, pow_const, pow_loop, scale_offset_row, zip};
use super::pool::{PoolJob, pool_pixels};
use super::rows::{NormJob, RowsJob, exp_sum, normalize, reduce, reduce_columns, reduce_each};
use super::vector::Lanes;

pub(crate) type UnaryFn = unsafe fn(*const f32, *mut f32, usize, [f32; 2]);
pub(crate) type BinaryFn = unsafe fn(Side, Side, *mut f32, usize);
pub(crate) type SweepFn<T> = unsafe fn(&Sweep<T>);
pub(crate) type DepthwiseFn = unsafe fn(&DepthwiseJob);
pub(crate) type ColumnsFn = unsafe fn(*const f32, usize, usize, *mut f32, usize);

/// Matrix kernels of one element type: `kernels[rows - 1][vectors - 1]`.
pub(crate) struct GemmTable<T: 'static> {
    /// Elements in a vector; panels are two vectors wide.
    pub lanes: usize,
    pub kernels: &'static [[SweepFn<T>; 2]],
    /// Copies rows of a panel.
    pub pack: unsafe fn(&PackJob<T>),
    pub dots: unsafe fn(&DotsJob<T>),
    pub stream: unsafe fn(&StreamJob<T>),
}

/// Computes neighboring pixels of a convolution; see [`slide`].
pub(crate) struct SlideKernel {
    /// Output pixels at a time.
    pub pixels: usize,
    /// By stride, from one on: for one vector of channels, and for two if there are registers for them.
    pub run: [&'static [SweepFn<f32>]; MAX_STRIDE],
}

/// The functions compiled for one instruction set.
pub(crate) struct DispatchTable {
    pub unary: [UnaryFn; 42],
    pub binary: [BinaryFn; 14],
    pub scale_offset: unsafe fn(*const f32, *const f32, *const f32, *mut f32, usize),
    pub gemm: GemmTable<f32>,
    pub gemm_double: GemmTable<f64>,
    /// Empty where a vector holds too few channels.
    pub slide: &'static [SlideKernel],
    /// Filters 3 wide with stride 1 and 2, then 5 and 7 wide likewise, then any.
    depthwise: [DepthwiseFn; 7],
    /// Filters 3 wide with stride 1, if there are registers for tiles of [`LONG`] pixels.
    depthwise_long: Option<DepthwiseFn>,
    pub depthwise_pixel: DepthwiseFn,
    pub depthwise_filter: unsafe fn(&FilterGradientJob),
    /// Tiles of four, of six and of eight.
    pub winograd_input: [unsafe fn(&InputJob); 3],
    pub winograd_gradient: [unsafe fn(&GradientJob); 3],
    pub winograd_filter: [unsafe fn(&FilterJob); 3],
    pub winograd_output: [unsafe fn(&OutputJob); 3],
    /// By [`PoolKind`](super::pool::PoolKind).
    pub pool: [unsafe fn(&PoolJob); 3],
    pub reduce: [unsafe fn(*const f32, usize, f32) -> f32; 4],
    pub reduce_each: [unsafe fn(&RowsJob); 4],
    pub reduce_columns: [ColumnsFn; 4],
    pub exp_sum: unsafe fn(*const f32, *mut f32, usize, f32) -> f32,
    pub normalize: unsafe fn(&NormJob),
}

impl DispatchTable {
    /// Returns the functions of [`Isa::current`].
    #[inline]
    pub(crate) fn current() -> &'static DispatchTable {
        DispatchTable::of(Isa::current())
    }

    /// Returns the kernel of a depthwise filter of this width, for lines of `out` pixels, and how many
    /// of them it computes at a time.
    pub(crate) fn depthwise(
        &self,
        width: usize,
        stride: usize,
        dilation: usize,
        out: usize,
    ) -> (usize, DepthwiseFn) {
        // The long tiles take about an eighth less for each pixel.
        let pays = 7 * out.next_multiple_of(LONG) <= 8 * out.next_multiple_of(PIXELS);
        if let Some(kernel) = self.depthwise_long
            && (width, stride, dilation) == (3, 1, 1)
            && out >= LONG
            && pays
        {
            return (LONG, kernel);
        }
        let kernel = self.depthwise[match (width, stride, dilation) {
            (3, 1, 1) => 0,
            (3, 2, 1) => 1,
            (5, 1, 1) => 2,
            (5, 2, 1) => 3,
            (7, 1, 1) => 4,
            (7, 2, 1) => 5,
            _ => 6,
        }];
        (PIXELS, kernel)
    }

    /// Returns the functions of an instruction set that the CPU has.
    #[inline]
    fn of(isa: Isa) -> &'static DispatchTable {
        match isa {
            Isa::Portable => &portable::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &avx512::TABLE,
            #[cfg(not(target_arch = "x86_64"))]
            _ => &portable::TABLE,
        }
    }
}

/// A module of the functions compiled for one instruction set.
macro_rules! isa {
    ($module:ident, $single:ty = $new:expr, $double:ty = $new_double:expr,
     [$($feature:literal)?], [$($mr:literal)*], [$($pixels:literal: $($vectors:literal)*);*]) => {
        mod $module {
            use super::*;
            type One = $single;
            type Two = $double;

            /// A function of the table, by its row.
            macro_rules! unary {
                ($row:literal) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(src: *const f32, dst: *mut f32, n: usize, p: [f32; 2]) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        struct Op(One, [f32; 2]);
                        impl Fun<One> for Op {
                            #[inline(always)]
                            fn call(&self, x: <One as Lanes>::V) -> <One as Lanes>::V {
                                elementwise::unary::<One, $row>(self.0, x, self.1)
                            }
                        }
                        // SAFETY: the caller's promise is the one `map` asks for.
                        unsafe { map(s, src, dst, n, Op(s, p)) }
                    }
                    run as UnaryFn
                }};
            }
            macro_rules! binary {
                ($row:literal) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(a: Side, b: Side, dst: *mut f32, n: usize) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        let f = |a, b| elementwise::binary::<One, $row>(s, a, b);
                        // SAFETY: the caller's promise is the one `zip` asks for.
                        unsafe { zip(s, a, b, dst, n, f) }
                    }
                    run as BinaryFn
                }};
            }
            macro_rules! kernel {
                ($token:ty, $create:expr, $mr_:literal, $nv:literal) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(job: &Sweep<<$token as Lanes>::T>) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let l: $token = unsafe { $create };
                        const KU: usize = match $mr_ * $nv {
                            1 | 2 => 4,
                            3 | 4 => 2,
                            _ => 1,
                        };
                        // SAFETY: the caller's promise is the one `sweep` asks for.
                        unsafe { sweep::<$token, $mr_, $nv, KU>(l, job) }
                    }
                    run as SweepFn<<$token as Lanes>::T>
                }};
            }

            /// A generic function of a token and a job, compiled for this instruction set.
            macro_rules! job {
                ($algo:expr, $job:ty) => {
                    job!($algo, $job, One, $new)
                };
                ($algo:expr, $job:ty, $token:ty, $create:expr) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(j: &$job) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: $token = unsafe { $create };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { $algo(s, j) }
                    }
                    run
                }};
            }
            macro_rules! reduce {
                ($op:literal) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(x: *const f32, n: usize, p: f32) -> f32 {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { reduce::<One, $op>(s, x, n, p) }
                    }
                    run
                }};
            }
            macro_rules! columns {
                ($op:literal) => {{
                    $(#[target_feature(enable = $feature)])?
                    unsafe fn run(x: *const f32, rows: usize, ld: usize, y: *mut f32, n: usize) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { reduce_columns::<One, $op>(s, x, rows, ld, y, n) }
                    }
                    run
                }};
            }
            $(#[target_feature(enable = $feature)])?
                    unsafe fn run_exp_sum(x: *const f32, y: *mut f32, n: usize, p: f32) -> f32 {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { exp_sum(s, x, y, n, p) }
                    }
            $(#[target_feature(enable = $feature)])?
                    unsafe fn run_scale_offset(x: *const f32, a: *const f32, b: *const f32, y: *mut f32, n: usize) {
                        // SAFETY: the table is only reached on a CPU with this instruction set.
                        #[allow(unused_unsafe, reason = "the portable token is free")]
                        let s: One = unsafe { $new };
                        // SAFETY: the caller's promise is the one the function asks for.
                        unsafe { scale_offset_row(s, x, a, b, y, n) }
                    }
            $(#[target_feature(enable = $feature)])?
            unsafe fn run_pow(src: *const f32, dst: *mut f32, n: usize, p: [f32; 2]) {
                // SAFETY: the table is only reached on a CPU with this instruction set.
                #[allow(unused_unsafe, reason = "the portable token is free")]
                let s: One = unsafe { $new };
                // SAFETY: the caller's promise.
                unsafe { pow_const(s, src, dst, n, p[0]) }
            }

            pub(super) static TABLE: DispatchTable = DispatchTable {
                unary: [
                    unary!(0), unary!(1), unary!(2), unary!(3), unary!(4), unary!(5), unary!(6), unary!(7),
                    unary!(8), unary!(9), unary!(10), unary!(11), unary!(12), unary!(13), unary!(14), unary!(15),
                    unary!(16), unary!(17), unary!(18), unary!(19), unary!(20), unary!(21), unary!(22), unary!(23),
                    unary!(24), unary!(25), unary!(26), unary!(27), unary!(28), unary!(29), unary!(30), unary!(31),
                    unary!(32), run_pow, unary!(34), unary!(35), unary!(36), unary!(37), unary!(38), unary!(39),
                    unary!(40), unary!(41),
                ],
                binary: [
                    binary!(0), binary!(1), binary!(2), binary!(3), binary!(4), binary!(5), binary!(6), pow_loop,
                    binary!(8), binary!(9), binary!(10), binary!(11), binary!(12), binary!(13),
                ],
                scale_offset: run_scale_offset,
                gemm: GemmTable {
                    lanes: <One as Lanes>::N,
                    kernels: &[$([kernel!(One, $new, $mr, 1), kernel!(One, $new, $mr, 2)],)*],
                    pack: job!(pack_rows::<One>, PackJob<f32>),
                    dots: job!(dots::<One>, DotsJob<f32>),
                    stream: job!(stream::<One>, StreamJob<f32>),
                },
                gemm_double: GemmTable {
                    lanes: <Two as Lanes>::N,
                    kernels: &[$([
                        kernel!(Two, $new_double, $mr, 1),
                        kernel!(Two, $new_double, $mr, 2),
                    ],)*],
                    pack: job!(pack_rows::<Two>, PackJob<f64>, Two, $new_double),
                    dots: job!(dots::<Two>, DotsJob<f64>, Two, $new_double),
                    stream: job!(stream::<Two>, StreamJob<f64>, Two, $new_double),
                },
                slide: &[$(SlideKernel {
                    pixels: $pixels,
                    run: [
                        &[$(job!(slide::<One, $pixels, $vectors, 1>, Sweep<f32>)),*],
                        &[$(job!(slide::<One, $pixels, $vectors, 2>, Sweep<f32>)),*],
                    ],
                }),*],
                depthwise: [
                    job!(tiles::<One, 3, 1, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 3, 2, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 5, 1, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 5, 2, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 7, 1, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 7, 2, PIXELS>, DepthwiseJob),
                    job!(tiles::<One, 0, 0, PIXELS>, DepthwiseJob),
                ],
                depthwise_long: match <One as Lanes>::N >= 16 {
                    true => Some(job!(tiles::<One, 3, 1, LONG>, DepthwiseJob)),
                    false => None,
                },
                depthwise_pixel: job!(tiles::<One, 0, 0, 1>, DepthwiseJob),
                depthwise_filter: job!(filter_gradient::<One>, FilterGradientJob),
                winograd_input: [
                    job!(input_tile::<One, 4>, InputJob),
                    job!(input_tile::<One, 6>, InputJob),
                    job!(input_tile::<One, 8>, InputJob),
                ],
                winograd_gradient: [
                    job!(gradient_tile::<One, 4, 2>, GradientJob),
                    job!(gradient_tile::<One, 6, 2>, GradientJob),
                    job!(gradient_tile::<One, 8, 4>, GradientJob),
                ],
                winograd_filter: [
                    job!(filter_tile::<One, 4, 3>, FilterJob),
                    job!(filter_tile::<One, 6, 5>, FilterJob),
                    job!(filter_tile::<One, 8, 5>, FilterJob),
                ],
                winograd_output: [
                    job!(output_tile::<One, 4, 2>, OutputJob),
                    job!(output_tile::<One, 6, 2>, OutputJob),
                    job!(output_tile::<One, 8, 4>, OutputJob),
                ],
                pool: [
                    job!(pool_pixels::<One, 0>, PoolJob),
                    job!(pool_pixels::<One, 1>, PoolJob),
                    job!(pool_pixels::<One, 2>, PoolJob),
                ],
                reduce: [reduce!(0), reduce!(1), reduce!(2), reduce!(3)],
                reduce_each: [
                    job!(reduce_each::<One, 0>, RowsJob),
                    job!(reduce_each::<One, 1>, RowsJob),
                    job!(reduce_each::<One, 2>, RowsJob),
                    job!(reduce_each::<One, 3>, RowsJob),
                ],
                reduce_columns: [columns!(0), columns!(1), columns!(2), columns!(3)],
                exp_sum: run_exp_sum,
                normalize: job!(normalize::<One>, NormJob),
            };
        }
    };
}

// CPUs without AVX2 are rare: the code for four rows takes half the space of that for six.
#[cfg(target_arch = "x86_64")]
isa!(
    portable,
    crate::vector::portable::Portable = crate::vector::portable::Portable,
    crate::vector::portable::PortableDouble = crate::vector::portable::PortableDouble,
    [],
    [1 2 3 4],
    []
);
#[cfg(not(target_arch = "x86_64"))]
isa!(
    portable,
    crate::vector::portable::Portable = crate::vector::portable::Portable,
    crate::vector::portable::PortableDouble = crate::vector::portable::PortableDouble,
    [],
    [1 2 3 4 5 6],
    []
);
#[cfg(target_arch = "x86_64")]
isa!(
    avx2,
    crate::vector::avx2::Avx2 = crate::vector::avx2::Avx2::new(),
    crate::vector::avx2::Avx2Double = crate::vector::avx2::Avx2Double::new(),
    ["avx2,fma"],
    [1 2 3 4 5 6],
    [10: 1; 8: 1]
);
#[cfg(target_arch = "x86_64")]
isa!(
    avx512,
    crate::vector::avx512::Avx512 = crate::vector::avx512::Avx512::new(),
    crate::vector::avx512::Avx512Double = crate::vector::avx512::Avx512Double::new(),
    ["avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"],
    [1 2 3 4 5 6 7 8],
    [12: 1; 10: 1 2; 8: 1 2]
);
