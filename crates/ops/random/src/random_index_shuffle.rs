//! RandomIndexShuffle: a position in a random permutation, without the permutation (TensorFlow:
//! `core/kernels/random_index_shuffle_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::index_shuffle::place;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RandomIndexShuffle",
    "index: dtype, seed: Tseed, max_index: dtype -> output: dtype | rounds: int = 4; dtype: type \
     {int32,uint32,int64,uint64}; Tseed: type {int32,uint32,int64,uint64}",
)
.shape(|ctx| {
    let ranks = [0, 1, 2].map(|i| ctx.input(i).rank());
    let shape = match ranks {
        [Some(0), Some(1), Some(0)] => PartialShape::scalar(),
        [Some(_), Some(_), Some(_)] => PartialShape::of([None]),
        _ => PartialShape::unknown(),
    };
    ctx.set(0, shape);
    Ok(())
})
.kernel(kernel)
.not_differentiable()];

/// An integer type of positions.
trait Position: Element {
    fn to_i128(self) -> i128;
    fn of_u64(x: u64) -> Self;
}

macro_rules! positions {
    ($($ty:ty),*) => {$(
        impl Position for $ty {
            fn to_i128(self) -> i128 {
                self.into()
            }
            fn of_u64(x: u64) -> Self {
                x as $ty
            }
        }
    )*};
}
positions!(i32, u32, i64, u64);

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let rounds = build.attrs.int("rounds")?;
    let rounds = usize::try_from(rounds).ok();
    let Some(rounds) = rounds.filter(|r| r.is_multiple_of(2) && (4..1 << 16).contains(r)) else {
        return Err(invalid_argument!(
            "rounds must be an even number from 4 on, not {}",
            build.attrs.int("rounds")?
        ));
    };
    let (dtype, seeds) = (build.output(0)?, build.input(1)?);
    dispatch!(dtype, T in [i32, u32, i64, u64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| shuffle::<T>(ctx, seeds, rounds))),
        else Err(build.unsupported(dtype)))
}

fn shuffle<T: Position>(ctx: &mut KernelCtx, seeds: DType, rounds: usize) -> Result<()> {
    let (index, seed, most) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let n = index.num_elements().max(most.num_elements());
    let n = n.max(seed.num_elements() / 3);
    let fits = |t: &Tensor| matches!(*t.shape().dims(), []) || *t.shape().dims() == [n];
    if !fits(index) {
        return Err(invalid_argument!("Index bust be a scalar or vector."));
    }
    if *seed.shape().dims() != [3] && *seed.shape().dims() != [n, 3] {
        return Err(invalid_argument!(
            "Seed must be a vector of size [3] or a matrix of size [{n}, 3] but got {}.",
            seed.shape()
        ));
    }
    if !fits(most) {
        return Err(invalid_argument!(
            "Maxval must be a scalar or a vector of the same size as index but got {}",
            most.shape()
        ));
    }
    let is_scalar =
        index.shape().is_scalar() && seed.shape().rank() == 1 && most.shape().is_scalar();
    let shape = if is_scalar {
        Shape::scalar()
    } else {
        Shape::from([n])
    };
    let keys: Vec<u32> = dispatch!(seeds, S in [i32, u32, i64, u64] =>
        seed.slice::<S>()?.iter().map(|s| s.to_i128() as u32).collect(),
        else return Err(invalid_argument!("Invalid seed type: {seeds}")));
    let one_key = seed.shape().rank() == 1;
    let (of_index, of_most) = (index.slice::<T>()?, most.slice::<T>()?);
    let mut out = ctx.alloc(T::DTYPE, shape)?;
    for (i, out) in out.slice_mut::<T>()?.iter_mut().enumerate() {
        let pick = |all: &[T]| {
            let found = if all.len() == 1 {
                all.first()
            } else {
                all.get(i)
            };
            found.map_or(0, |x| x.to_i128())
        };
        let (index, most) = (pick(of_index), pick(of_most));
        for (name, x) in [("index", index), ("max_index", most)] {
            if x < 0 {
                return Err(invalid_argument!("{name} must be >= 0 but was {x}"));
            }
        }
        if most < index {
            return Err(invalid_argument!(
                "max_index must be >= index, but {most} < {index}"
            ));
        }
        let start = if one_key { 0 } else { 3 * i };
        let key = [0, 1, 2].map(|k| keys.get(start + k).copied().unwrap_or(0));
        *out = T::of_u64(place(index as u64, key, most as u64, rounds));
    }
    ctx.set_output(0, out)
}
