//! EditDistance (TensorFlow: `core/kernels/edit_distance_op.cc`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::sparse::groups;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, Tensor, bf16, dispatch, f16,
};
use std::cmp::Ordering;
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "EditDistance",
    "hypothesis_indices: int64, hypothesis_values: T, hypothesis_shape: int64, \
     truth_indices: int64, truth_values: T, truth_shape: int64 -> output: float | \
     normalize: bool = true; T: type",
)
.shape(|ctx| {
    let (Some(hypothesis), Some(truth)) = (ctx.constant_ints(2), ctx.constant_ints(5)) else {
        return Ok(());
    };
    let sizes = hypothesis.iter().zip(&truth).map(|(a, b)| *a.max(b));
    let sizes: Vec<i64> = sizes.collect();
    if let Some((_, sizes)) = sizes.split_last() {
        let dims = sizes.iter().map(|&d| usize::try_from(d).ok());
        ctx.set(0, PartialShape::of(dims));
    }
    Ok(())
})
.kernel(kernel)
.not_differentiable()];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let normalize = build.attrs.bool("normalize")?;
    let dtype = build.input(1)?;
    let cost: Cost = match dtype {
        DType::String => |ctx, truth, hypothesis| {
            let [truth, hypothesis] = [(4, truth), (1, hypothesis)].map(|(i, range)| {
                let values = ctx.input(i)?.strings()?;
                Ok::<_, ferroflow_base::Status>(values.get(range).unwrap_or_default())
            });
            Ok(levenshtein(truth?, hypothesis?))
        },
        _ => dispatch!(dtype, T in [
                f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32, Complex64
            ] => cost::<T>,
            else return Err(build.unsupported(dtype))),
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = distances(ctx, cost, normalize)?;
        ctx.set_output(0, out)
    }))
}

/// The distance of two sequences: ranges of the values of the truth and of the hypothesis.
type Cost = fn(&KernelCtx, Range<usize>, Range<usize>) -> Result<usize>;

fn cost<T: Element>(
    ctx: &KernelCtx,
    truth: Range<usize>,
    hypothesis: Range<usize>,
) -> Result<usize> {
    let truth = ctx.slice::<T>(4)?.get(truth).unwrap_or_default();
    let hypothesis = ctx.slice::<T>(1)?.get(hypothesis).unwrap_or_default();
    Ok(levenshtein(truth, hypothesis))
}

/// The sequences of a sparse tensor, which are its last dimension.
struct Sequences<'a> {
    shape: Vec<i64>,
    indices: &'a [i64],
    groups: Vec<Range<usize>>,
}

impl Sequences<'_> {
    /// Where sequence `i` is in the other dimensions.
    fn key(&self, i: usize) -> Option<&[i64]> {
        let rank = self.shape.len();
        let first = self.groups.get(i)?.start * rank;
        self.indices.get(first..first + rank - 1)
    }
}

fn check_inputs(ctx: &KernelCtx) -> Result<()> {
    const NAMES: [&str; 6] = [
        "hypothesis_indices",
        "hypothesis_values",
        "hypothesis_shape",
        "truth_indices",
        "truth_values",
        "truth_shape",
    ];
    for (i, rank) in [(0, 2), (3, 2), (1, 1), (4, 1), (2, 1), (5, 1)] {
        let shape = ctx.shape(i)?;
        if shape.rank() != rank {
            let form = if rank == 2 { "matrix" } else { "vector" };
            return Err(invalid_argument!(
                "{} should be a {form}, but got shape: {shape}",
                NAMES[i]
            ));
        }
    }
    let count = |i: usize| Ok::<usize, ferroflow_base::Status>(ctx.shape(i)?.num_elements());
    let check = |name: &str, of: &str, i: usize, first: usize, axis: usize| -> Result<()> {
        if count(i)? == ctx.shape(first)?[axis] {
            return Ok(());
        }
        Err(invalid_argument!(
            "Expected {name}.NumElements == #{of}({}), their shapes are: {} and {}",
            NAMES[first],
            ctx.shape(i)?,
            ctx.shape(first)?
        ))
    };
    check(NAMES[1], "rows", 1, 0, 0)?;
    check(NAMES[2], "cols", 2, 0, 1)?;
    if count(5)? < 2 {
        return Err(invalid_argument!(
            "Input SparseTensors must have rank at least 2, but truth_shape rank is: {}",
            count(5)?
        ));
    }
    check(NAMES[4], "rows", 4, 3, 0)?;
    check(NAMES[5], "cols", 5, 3, 1)?;
    if count(5)? != count(2)? {
        return Err(invalid_argument!(
            "Expected truth and hypothesis to have matching ranks, but their shapes are: {} and {}",
            ctx.shape(5)?,
            ctx.shape(2)?
        ));
    }
    Ok(())
}

/// The sequences of the hypothesis and of the truth.
fn sequences<'a>(ctx: &'a KernelCtx) -> Result<[Sequences<'a>; 2]> {
    check_inputs(ctx)?;
    let of = |i: usize| -> Result<Sequences<'a>> {
        let shape = ctx.slice::<i64>(i + 2)?.to_vec();
        Shape::checked(&shape)?;
        let indices = ctx.slice::<i64>(i)?;
        Ok(Sequences {
            groups: groups(indices, shape.len()),
            indices,
            shape,
        })
    };
    Ok([of(0)?, of(3)?])
}

fn distances(ctx: &KernelCtx, cost: Cost, normalize: bool) -> Result<Tensor> {
    let [hypothesis, truth] = sequences(ctx)?;
    let counts = [ctx.input(1)?.num_elements(), ctx.input(4)?.num_elements()];
    let sizes = hypothesis.shape.iter().zip(&truth.shape);
    let sizes: Vec<i64> = sizes.map(|(a, b)| *a.max(b)).collect();
    let shape = Shape::checked(&sizes[..sizes.len() - 1])?;
    if shape.num_elements() == 0 {
        return Err(invalid_argument!(
            "Got output shape {shape} which has 0 elements"
        ));
    }
    let strides = shape.strides();
    let mut out = Tensor::zeros(DType::Float, shape)?;
    let cells = out.slice_mut::<f32>()?;
    let (mut h, mut t) = (0, 0);
    loop {
        let order = match (hypothesis.key(h), truth.key(t)) {
            (None, None) => break,
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        let key = match order {
            Ordering::Greater => truth.key(t),
            _ => hypothesis.key(h),
        };
        let terms = key.unwrap_or_default().iter().zip(&strides);
        let place = terms.fold(0i64, |sum, (&x, &stride)| {
            sum.wrapping_add(x.wrapping_mul(stride as i64))
        });
        let n = cells.len();
        let cell = usize::try_from(place).ok().and_then(|i| cells.get_mut(i));
        let cell = cell.ok_or_else(|| {
            internal!(
                "Got an inner product {place} which would require writing to outside of the buffer for \
                 the output tensor (max elements {n})"
            )
        })?;
        // A range out of bounds has no values.
        let len = |n: usize, range: &Range<usize>| if range.end <= n { range.len() } else { 0 };
        match order {
            Ordering::Equal => {
                let of = truth.groups[t].clone();
                let n = len(counts[1], &of);
                *cell = cost(ctx, of, hypothesis.groups[h].clone())? as f32;
                if normalize {
                    *cell /= n as f32;
                }
            }
            // Nothing was to be found.
            Ordering::Less => {
                *cell = match normalize {
                    true => f32::INFINITY,
                    false => len(counts[0], &hypothesis.groups[h]) as f32,
                };
            }
            // Nothing was found.
            Ordering::Greater => {
                *cell = match normalize {
                    true => 1.0,
                    false => len(counts[1], &truth.groups[t]) as f32,
                };
            }
        }
        h += usize::from(order != Ordering::Greater);
        t += usize::from(order != Ordering::Less);
    }
    Ok(out)
}

/// The least number of insertions, deletions and substitutions that make one sequence the other.
fn levenshtein<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    let mut costs: Vec<usize> = (1..=short.len()).collect();
    for (i, x) in long.iter().enumerate() {
        let (mut diagonal, mut left) = (i, i + 1);
        for (cost, y) in costs.iter_mut().zip(short) {
            let substitution = diagonal + usize::from(x != y);
            diagonal = *cost;
            left = substitution.min(left + 1).min(*cost + 1);
            *cost = left;
        }
    }
    costs.last().copied().unwrap_or(long.len())
}
