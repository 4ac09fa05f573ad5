//! StochasticCastToInt (TensorFlow: `core/kernels/stochastic_cast_op.cc`).
//!
//! Which random number an element gets follows from TensorFlow's vectorized loop: floats and doubles that become
//! `int32` are rounded eight at a time, all others one by one, and those draw a block each.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::distributions::{Distribution, Uniform};
use ferroflow_functors::indices::int;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::philox::Philox;
use ferroflow_tensor::{DType, Element, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StochasticCastToInt",
    "input: Tin, key: uint64, counter: uint64, alg: int32 -> output: Tout | Tin: type \
     {half,bfloat16,float,double}; Tout: type {int8,int16,int32}",
)
.shape(|ctx| {
    let key = ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 1)?;
    ctx.with_rank(3, 0)?;
    if let Some(n) = key.dim(0).filter(|n| *n != 1) {
        return Err(invalid_argument!("Dimension must be 1 but is {n}"));
    }
    shapes::unchanged(ctx)
})
.cost(Cost::Expensive)
.kernel(cast)];

/// A float that is rounded at random.
trait Rounded: Element + Copy + PartialOrd + Default {
    /// Elements that share the first block in the vectorized loop.
    const LANES: usize;
    fn of(value: f64) -> Self;
    fn wide(self) -> f64;
    fn plus(self, o: Self) -> Self;
    fn minus(self, o: Self) -> Self;
    fn floored(self) -> Self;
}

macro_rules! rounded {
    ($($ty:ident: $lanes:expr, $of:expr, $wide:expr, $floor:expr);*) => {$(
        impl Rounded for $ty {
            const LANES: usize = $lanes;
            fn of(value: f64) -> Self {
                let of: fn(f64) -> $ty = $of;
                of(value)
            }
            fn wide(self) -> f64 {
                let wide: fn($ty) -> f64 = $wide;
                wide(self)
            }
            fn plus(self, o: Self) -> Self {
                self + o
            }
            fn minus(self, o: Self) -> Self {
                self - o
            }
            fn floored(self) -> Self {
                let floor: fn($ty) -> $ty = $floor;
                floor(self)
            }
        }
    )*};
}
rounded! {
    f32: 8, |x| x as f32, f64::from, f32::floor;
    f64: 4, |x| x, |x| x, f64::floor;
    f16: 8, f16::from_f64, f16::to_f64, |x| f16::from_f32(x.to_f32().floor());
    bf16: 8, bf16::from_f64, bf16::to_f64, |x| bf16::from_f32(x.to_f32().floor())
}

/// Rounds by a number in [0, 1), drawn if there is something to round.
fn rounded<T: Rounded>(x: T, [min, max]: [T; 2], draw: impl FnOnce() -> T, by_lanes: bool) -> T {
    if x.partial_cmp(&x).is_none() {
        return T::default();
    }
    if x >= max {
        return max;
    }
    if x <= min {
        return min;
    }
    if x.floored() == x {
        return x;
    }
    let one = T::of(1.0);
    let random = draw();
    if x < T::default() {
        x.plus(random).floored()
    } else if by_lanes {
        x.plus(one.minus(random)).floored()
    } else {
        x.plus(one).minus(random).floored()
    }
}

/// Converts as x86 does: through 32 bits, of which what does not fit is the lowest.
fn low_bits(x: f64) -> i32 {
    match (-2_147_483_648.0..2_147_483_648.0).contains(&x) {
        true => x as i32,
        false => i32::MIN,
    }
}

fn round_all<T: Rounded, U>(
    mut random: Philox,
    from: &[T],
    limits: [f64; 2],
    to: &mut [U],
    narrow: fn(i32) -> U,
) where
    Uniform: Distribution<T>,
{
    let limits = limits.map(T::of);
    let is_wide = matches!(T::DTYPE, DType::Float | DType::Double) && limits[1].wide() > 1e9;
    let n_vector = if is_wide { from.len() / 8 * 8 } else { 0 };
    let group = <Uniform as Distribution<T>>::GROUP;
    let mut draw = |values: &mut [T]| Uniform.group(&mut random, values);
    let (vectors, rest) = from.split_at(n_vector);
    let (to_vectors, to_rest) = to.split_at_mut(n_vector);
    let lanes = vectors.chunks_exact(T::LANES);
    for (from, to) in lanes.zip(to_vectors.chunks_exact_mut(T::LANES)) {
        let mut values = [T::default(); 4];
        draw(&mut values[..group]);
        for (i, (x, to)) in from.iter().zip(to).enumerate() {
            let x = rounded(*x, limits, || values[i % group], true);
            *to = narrow(low_bits(x.wide()));
        }
    }
    for (x, to) in rest.iter().zip(to_rest) {
        let one = || {
            let mut values = [T::default(); 4];
            draw(&mut values[..group]);
            values[0]
        };
        *to = narrow(low_bits(rounded(*x, limits, one, false).wide()));
    }
}

/// Returns the stream: its key is the op's counter, the upper half of its counter the op's key.
fn stream(ctx: &KernelCtx) -> Result<Philox> {
    let (key, counter, alg) = (ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    if !alg.shape().is_scalar() {
        return Err(invalid_argument!(
            "input 3 (0-based) must have shape [], not {}",
            alg.shape()
        ));
    }
    let alg = match int(alg).unwrap_or_default() {
        3 => 1,
        alg => alg,
    };
    let (1, &[key]) = (key.shape().rank(), key.slice::<u64>()?) else {
        return Err(invalid_argument!(
            "key must have shape [1], not {}. (Note that batched keys are not supported yet.)",
            key.shape()
        ));
    };
    let values = counter.slice::<u64>()?;
    if counter.shape().rank() != 1 || (values.len() as i64) < alg {
        return Err(invalid_argument!(
            "counter must be a vector with length at least {alg}; got shape: {}. (Note that \
             batched counters are not supported yet.)",
            counter.shape()
        ));
    }
    match values {
        [counter, ..] if alg == 1 => Ok(Philox::at(*counter, u128::from(key) << 64)),
        _ => Err(invalid_argument!("Unsupported algorithm id: {alg}")),
    }
}

fn cast(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (from, to) = (build.input(0)?, build.output(0)?);
    dispatch!(from, T in [f16, bf16, f32, f64] => {
        dispatch!(to, U in [i8, i16, i32] => Ok(Box::new(move |ctx: &mut KernelCtx| {
            let random = stream(ctx)?;
            let mut out = ctx.alloc(to, ctx.shape(0)?.clone())?;
            let limits = [U::MIN, U::MAX].map(f64::from);
            round_all::<T, U>(random, ctx.slice(0)?, limits, out.slice_mut()?, |x| x as U);
            ctx.set_output(0, out)
        })), else Err(build.unsupported(to)))
    }, else Err(build.unsupported(from)))
}
