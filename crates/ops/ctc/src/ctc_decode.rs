//! CTCGreedyDecoder and CTCBeamSearchDecoder (TensorFlow: `core/kernels/ctc_decoder_ops.cc`).

use crate::beam_search::{Beam, Logarithm};
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_functors::numeric::Ordered;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CTCGreedyDecoder",
        "inputs: T, sequence_length: int32 -> decoded_indices: int64, decoded_values: int64, \
         decoded_shape: int64, log_probability: T | merge_repeated: bool = false; blank_index: int \
         = -1; T: type {float,double} = float",
    )
    .shape(|ctx| decoded_shapes(ctx, 1))
    .kernel(greedy)
    .not_differentiable(),
    Op::new(
        "CTCBeamSearchDecoder",
        "inputs: T, sequence_length: int32 -> decoded_indices: top_paths*int64, decoded_values: \
         top_paths*int64, decoded_shape: top_paths*int64, log_probability: T | beam_width: int >= \
         1; top_paths: int >= 1; merge_repeated: bool = true; T: type {float,double} = float",
    )
    .shape(|ctx| {
        let n = ctx.num_outputs() / 3;
        decoded_shapes(ctx, n)
    })
    .kernel(beam_search)
    .not_differentiable(),
];

fn decoded_shapes(ctx: &mut ShapeCtx, n_paths: usize) -> Result<()> {
    let (inputs, lengths) = (ctx.with_rank(0, 3)?, ctx.with_rank(1, 1)?);
    let batch = PartialShape::of([inputs.dim(1)]);
    let batch = ctx.merge(&batch, &PartialShape::of([lengths.dim(0)]))?;
    for i in 0..n_paths {
        ctx.set(i, PartialShape::of([None, Some(2)]));
        ctx.set(n_paths + i, PartialShape::of([None]));
        ctx.set(2 * n_paths + i, PartialShape::of([Some(2)]));
    }
    let shape = PartialShape::of([batch.dim(0), Some(n_paths)]);
    ctx.set(3 * n_paths, shape);
    Ok(())
}

/// The checked sizes of the inputs: time, batch, classes.
struct Sizes {
    batch: usize,
    classes: usize,
}

impl Sizes {
    fn of(ctx: &KernelCtx) -> Result<Sizes> {
        let (inputs, lengths) = (ctx.shape(0)?, ctx.input(1)?);
        let &[time, batch, classes] = inputs.dims() else {
            return Err(invalid_argument!("inputs is not a 3-Tensor"));
        };
        if inputs.num_elements() == 0 {
            return Err(invalid_argument!("inputs must not be empty"));
        }
        if lengths.shape().rank() != 1 {
            return Err(invalid_argument!("sequence_length is not a vector"));
        }
        if lengths.num_elements() != batch {
            return Err(failed_precondition!(
                "len(sequence_length) != batch_size.  len(sequence_length):  {} batch_size: {batch}",
                lengths.num_elements()
            ));
        }
        let too_long = |&n: &i32| usize::try_from(n).is_ok_and(|n| n > time);
        if let Some(b) = lengths.slice::<i32>()?.iter().position(too_long) {
            return Err(failed_precondition!("sequence_length({b}) <= {time}"));
        }
        if classes > i32::MAX as usize {
            return Err(invalid_argument!("num_classes cannot exceed max int"));
        }
        Ok(Sizes { batch, classes })
    }

    /// Returns the logits of an element of the batch, step by step.
    fn steps<'a, T>(&self, logits: &'a [T], b: usize, n: i32) -> impl Iterator<Item = &'a [T]> {
        let (batch, classes) = (self.batch, self.classes);
        let rows = logits.chunks_exact(classes).skip(b).step_by(batch);
        rows.take(usize::try_from(n).unwrap_or(0))
    }
}

/// A decoded sequence of labels and its score.
struct Path<T> {
    labels: Vec<i64>,
    score: T,
}

fn greedy(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let merge = build.attrs.bool("merge_repeated")?;
    let blank = build.attrs.int("blank_index")?;
    let dtype = build.output(3)?;
    dispatch!(dtype, T in [f32, f64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| best_classes::<T>(ctx, merge, blank))),
        else Err(build.unsupported(dtype)))
}

/// Takes the best class of each step.
fn best_classes<T: Ordered>(ctx: &mut KernelCtx, merge: bool, wanted: i64) -> Result<()> {
    let sizes = Sizes::of(ctx)?;
    let n = sizes.classes as i64;
    let blank = if wanted < 0 { n + wanted } else { wanted };
    if !(0..n).contains(&blank) {
        return Err(invalid_argument!(
            "blank_index expected to be between {} and {} but was {wanted}",
            -n,
            n - 1
        ));
    }
    let (logits, lengths) = (ctx.slice::<T>(0)?, ctx.slice::<i32>(1)?);
    let mut paths: Vec<Option<Path<T>>> = (0..sizes.batch).map(|_| None).collect();
    par_chunks_mut(ctx.par(), &mut paths, 1, 1, &|b, path| {
        let (mut labels, mut score, mut previous) = (Vec::new(), T::ZERO, -1);
        let n = lengths.get(b).copied().unwrap_or(0);
        for row in sizes.steps(logits, b, n) {
            let mut best = (0i64, row.first().copied().unwrap_or(T::ZERO));
            for (class, &x) in row.iter().enumerate().skip(1) {
                if x > best.1 {
                    best = (class as i64, x);
                }
            }
            score = score.sub(best.1);
            if best.0 != blank && !(merge && best.0 == previous) {
                labels.push(best.0);
            }
            previous = best.0;
        }
        path.fill_with(|| {
            Some(Path {
                labels: std::mem::take(&mut labels),
                score,
            })
        });
    });
    let paths: Vec<Path<T>> = paths.into_iter().flatten().collect();
    store(ctx, &paths, 1, sizes.batch)
}

fn beam_search(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let merge = build.attrs.bool("merge_repeated")?;
    let width = usize::try_from(build.attrs.int("beam_width")?).unwrap_or(1);
    let dtype = build.attrs.dtype("T")?;
    let n_paths = build.outputs.len() / 3;
    dispatch!(dtype, T in [f32, f64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        best_paths::<T>(ctx, merge, width, n_paths)
    })), else Err(build.unsupported(dtype)))
}

/// The labels and scores of the best paths.
type Found<T> = Result<Vec<(Vec<i64>, T)>>;

fn best_paths<T: Logarithm>(
    ctx: &mut KernelCtx,
    merge: bool,
    width: usize,
    n_paths: usize,
) -> Result<()> {
    let sizes = Sizes::of(ctx)?;
    let (logits, lengths) = (ctx.slice::<T>(0)?, ctx.slice::<i32>(1)?);
    let mut found: Vec<Found<T>> = (0..sizes.batch).map(|_| Ok(Vec::new())).collect();
    par_chunks_mut(ctx.par(), &mut found, 1, 1, &|b, found| {
        let mut beam = Beam::new(sizes.classes, width);
        let n = lengths.get(b).copied().unwrap_or(0);
        for row in sizes.steps(logits, b, n) {
            beam.step(row);
        }
        if let Some(found) = found.first_mut() {
            *found = beam.top(n_paths, merge);
        }
    });
    let mut paths = Vec::with_capacity(sizes.batch * n_paths);
    for found in found {
        paths.extend(
            found?
                .into_iter()
                .map(|(labels, score)| Path { labels, score }),
        );
    }
    store(ctx, &paths, n_paths, sizes.batch)
}

/// Sets the outputs: sparse tensors of labels, and the scores. `paths` has those of each element
/// of the batch, one after another.
fn store<T: Ordered>(
    ctx: &mut KernelCtx,
    paths: &[Path<T>],
    n_paths: usize,
    batch: usize,
) -> Result<()> {
    for p in 0..n_paths {
        let own = || paths.iter().skip(p).step_by(n_paths.max(1));
        let total = own().map(|path| path.labels.len()).sum();
        let longest = own().map(|path| path.labels.len()).max().unwrap_or(0);
        let mut at = ctx.alloc(DType::Int64, Shape::from([total, 2]))?;
        let mut cells = at.slice_mut::<i64>()?.chunks_exact_mut(2);
        let mut values = Vec::with_capacity(total);
        for (b, path) in own().enumerate() {
            values.extend_from_slice(&path.labels);
            for (t, cell) in cells.by_ref().take(path.labels.len()).enumerate() {
                cell.copy_from_slice(&[b as i64, t as i64]);
            }
        }
        let shape = Tensor::vector(&[batch as i64, longest as i64])?;
        ctx.set_output(p, at)?;
        ctx.set_output(n_paths + p, Tensor::vector(&values)?)?;
        ctx.set_output(2 * n_paths + p, shape)?;
    }
    let scores: Vec<T> = paths.iter().map(|path| path.score).collect();
    let scores = Tensor::from_slice([batch, n_paths], &scores)?;
    ctx.set_output(3 * n_paths, scores)
}
