//! SobolSample (TensorFlow: `core/kernels/sobol_op.cc`).
//!
//! S. Joe and F. Y. Kuo, "Remark on Algorithm 659: Implementing Sobol's quasirandom sequence
//! generator", ACM TOMS 29, 2003; `sobol.bin` holds their parameters `new-joe-kuo-6.21201` (BSD).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::constant_int;
use ferroflow_opdef::{KernelCtx, Op};
use ferroflow_tensor::{Element, PartialShape, Shape, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "SobolSample",
    "dim: int32, num_results: int32, skip: int32 -> samples: dtype | dtype: type \
     {float,double} = float",
)
.shape(|ctx| {
    for i in 0..3 {
        ctx.with_rank(i, 0)?;
    }
    let size = |i: usize| constant_int(ctx, i).and_then(|n| usize::try_from(n).ok());
    let shape = PartialShape::of([size(1), size(0)]);
    ctx.set(0, shape);
    Ok(())
})
.kernel(|build| {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f32, f64] => Ok(Box::new(sample::<T>)),
        else Err(build.unsupported(dtype)))
})];

/// The largest dimension.
const MAX_DIM: usize = 21200;
/// The digits of a direction number.
const DIGITS: usize = 31;

/// Of each dimension but the first: the inner coefficients of its primitive polynomial, then for
/// each of its initial numbers the bits above the lowest, which is 1. The lowest bits come first.
static PARAMETERS: &[u8] = include_bytes!("sobol.bin");

/// The number of primitive polynomials of degree 1, 2, and so on.
const N_POLYNOMIALS: [usize; 18] = [
    1, 1, 2, 2, 6, 6, 18, 16, 48, 60, 176, 144, 630, 756, 1800, 2048, 7710, 7775,
];

/// Takes numbers of a few bits from bytes.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn take(&mut self, n: usize) -> u32 {
        let bit = |at: usize| {
            self.bytes
                .get(at / 8)
                .map_or(0, |b| u32::from(b >> (at % 8) & 1))
        };
        let value = (0..n).fold(0, |v, i| v | bit(self.at + i) << i);
        self.at += n;
        value
    }
}

/// Direction number `k` is an odd integer below `2^(k+1)`.
type Directions = [u32; DIGITS];

/// Returns the direction numbers of the first dimensions.
fn directions(n_dims: usize) -> Vec<Directions> {
    let mut bits = Bits {
        bytes: PARAMETERS,
        at: 0,
    };
    let degrees = N_POLYNOMIALS.iter().enumerate();
    let degrees = degrees.flat_map(|(i, &n)| std::iter::repeat_n(i + 1, n));
    let rest = degrees.map(|degree| {
        let coefficients = bits.take(degree - 1);
        let mut all = [0; DIGITS];
        for k in 0..DIGITS {
            if k < degree {
                all[k] = bits.take(k) << 1 | 1;
                continue;
            }
            let last = all[k - degree];
            let inner = (1..degree).filter(|i| coefficients >> (degree - 1 - i) & 1 == 1);
            all[k] = inner.fold(last ^ (last << degree), |v, i| v ^ all[k - i] << i);
        }
        all
    });
    std::iter::once([1; DIGITS])
        .chain(rest)
        .take(n_dims)
        .collect()
}

trait Float: Element {
    fn scaled(v: u32, digits: usize) -> Self;
}

impl Float for f32 {
    fn scaled(v: u32, digits: usize) -> f32 {
        v as f32 / (1u64 << digits) as f32
    }
}

impl Float for f64 {
    fn scaled(v: u32, digits: usize) -> f64 {
        f64::from(v) / (1u64 << digits) as f64
    }
}

/// The scalar input `i`.
fn scalar(ctx: &KernelCtx, i: usize, name: &str) -> Result<i64> {
    let input = ctx.input(i)?;
    match input.shape().is_scalar() {
        true => Ok(i64::from(input.to_scalar::<i32>()?)),
        false => Err(invalid_argument!("{name} must be a scalar")),
    }
}

fn sample<T: Float>(ctx: &mut KernelCtx) -> Result<()> {
    let dim = scalar(ctx, 0, "dim")?;
    let n = scalar(ctx, 1, "num_results")?;
    let skip = scalar(ctx, 2, "skip")?;
    let most = i64::from(i32::MAX);
    if dim < 1 {
        return Err(invalid_argument!("dim must be at least one"));
    }
    if dim > MAX_DIM as i64 {
        return Err(invalid_argument!("dim must be at most {MAX_DIM}"));
    }
    if n < 1 {
        return Err(invalid_argument!("num_results must be at least one"));
    }
    if skip < 0 {
        return Err(invalid_argument!("skip must be non-negative"));
    }
    if n >= most - skip {
        return Err(invalid_argument!(
            "num_results+skip must be less than {most}"
        ));
    }
    if n >= most / dim {
        return Err(invalid_argument!(
            "num_results*dim must be less than {most}"
        ));
    }
    let (dim, skip) = (dim as usize, skip as u64);
    let table = directions(dim);
    // As many digits as the number of the last point has.
    let digits = (u64::BITS - (skip + n as u64 + 1).leading_zeros()) as usize;
    let direction = |j: usize, k: usize| table[j][k] << (digits - k - 1);
    let first = skip + 1;
    let gray = first ^ (first >> 1);
    let mut point: Vec<u32> = (0..dim)
        .map(|j| {
            let set = (0..digits).filter(|&k| gray >> k & 1 == 1);
            set.fold(0, |v, k| v ^ direction(j, k))
        })
        .collect();
    let mut out = ctx.alloc(T::DTYPE, Shape::from([n as usize, dim]))?;
    let rows = out.slice_mut::<T>()?.chunks_exact_mut(dim);
    for (i, row) in rows.enumerate() {
        if i > 0 {
            // Neighbors in Gray code differ in the lowest zero of the earlier number.
            let k = (i as u64 + skip).trailing_ones() as usize;
            for (j, v) in point.iter_mut().enumerate() {
                *v ^= direction(j, k);
            }
        }
        for (to, &v) in row.iter_mut().zip(&point) {
            *to = T::scaled(v, digits);
        }
    }
    ctx.set_output(0, out)
}
