//! CTCLoss (TensorFlow: `core/kernels/ctc_loss_op.cc`, `core/util/ctc/ctc_loss_calculator.h`; Graves
//! et al., "Connectionist Temporal Classification", 2006).

use crate::beam_search::Logarithm;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::list;
use ferroflow_functors::sparse::check_ordered;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{PartialShape, Shape, Tensor, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "CTCLoss",
    "inputs: T, labels_indices: int64, labels_values: int32, sequence_length: int32 -> loss: T, \
     gradient: T | preprocess_collapse_repeated: bool = false; ctc_merge_repeated: bool = true; \
     ignore_longer_outputs_than_inputs: bool = false; T: type {float,double} = float",
)
.shape(|ctx| {
    let (inputs, at) = (ctx.with_rank(0, 3)?, ctx.with_rank(1, 2)?);
    let (values, lengths) = (ctx.with_rank(2, 1)?, ctx.with_rank(3, 1)?);
    let vector = |d| PartialShape::of([d]);
    ctx.merge(&vector(at.dim(0)), &vector(values.dim(0)))?;
    let batch = ctx.merge(&vector(inputs.dim(1)), &vector(lengths.dim(0)))?;
    let gradient = PartialShape::of([inputs.dim(0), batch.dim(0), inputs.dim(2)]);
    ctx.set(0, batch);
    ctx.set(1, gradient);
    Ok(())
})
.kernel(kernel)
.gradient(gradient)];

/// How labels and alignments are treated.
#[derive(Clone, Copy)]
struct Options {
    /// Repeated labels are one.
    collapse: bool,
    /// Repeated classes of an alignment are one label.
    merge: bool,
    /// Sequences shorter than their labels have no loss.
    ignore_longer: bool,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attr = |name| build.attrs.bool(name);
    let options = Options {
        collapse: attr("preprocess_collapse_repeated")?,
        merge: attr("ctc_merge_repeated")?,
        ignore_longer: attr("ignore_longer_outputs_than_inputs")?,
    };
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f32, f64] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| loss::<T>(ctx, options))),
        else Err(build.unsupported(dtype)))
}

/// Checks the inputs; returns the labels of each element of the batch.
fn labels<'a>(ctx: &'a KernelCtx) -> Result<Vec<&'a [i32]>> {
    let (at, values, lengths) = (ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    let &[time, batch, classes] = ctx.shape(0)?.dims() else {
        return Err(invalid_argument!("inputs is not a 3-Tensor"));
    };
    if lengths.shape().rank() != 1 {
        return Err(invalid_argument!("sequence_length is not a vector"));
    }
    let &[n, width] = at.shape().dims() else {
        return Err(invalid_argument!("labels_indices is not a matrix"));
    };
    if width < 2 {
        return Err(invalid_argument!(
            "labels_indices second dimension must be >= 1. Received {width}"
        ));
    }
    if values.shape().rank() != 1 {
        return Err(invalid_argument!("labels_values is not a vector"));
    }
    if time == 0 {
        return Err(invalid_argument!(
            "Max time or first dimension of input cannot be 0."
        ));
    }
    if classes > i32::MAX as usize {
        return Err(invalid_argument!("num_classes cannot exceed max int"));
    }
    if lengths.num_elements() != batch {
        return Err(invalid_argument!(
            "len(sequence_length) != batch_size.  len(sequence_length):  {} batch_size: {batch}",
            lengths.num_elements()
        ));
    }
    if values.num_elements() != n {
        return Err(invalid_argument!(
            "labels_indices and labels_values must contain the same number of rows, but saw \
             shapes: {} vs. {}",
            at.shape(),
            values.shape()
        ));
    }
    if batch == 0 {
        return Err(invalid_argument!("batch_size must not be 0"));
    }
    if width > 2 {
        return Err(invalid_argument!("Order length must be SparseTensor rank."));
    }
    let rows = at.slice::<i64>()?;
    let longest = rows.iter().skip(1).step_by(2).map(|x| x.saturating_add(1));
    let sizes = [batch as i64, longest.fold(0, i64::max)];
    if let Err(e) = check_ordered(rows, 2, &sizes) {
        return Err(invalid_argument!(
            "label SparseTensor is not valid: {}",
            e.message()
        ));
    }
    let values = values.slice::<i32>()?;
    let batches: Vec<i64> = rows.iter().step_by(2).copied().collect();
    let of = |b: usize| {
        let start = batches.partition_point(|&x| x < b as i64);
        let end = batches.partition_point(|&x| x <= b as i64);
        values.get(start..end).unwrap_or_default()
    };
    for (b, &length) in lengths.slice::<i32>()?.iter().enumerate() {
        if i64::from(length) > time as i64 {
            return Err(invalid_argument!("sequence_length({b}) <= {time}"));
        }
    }
    Ok((0..batch).map(of).collect())
}

/// Returns the labels with blanks before, between and after them.
fn with_blanks(
    labels: &[i32],
    b: usize,
    classes: usize,
    length: i32,
    options: Options,
) -> Result<Vec<usize>> {
    if labels.is_empty() {
        return Err(invalid_argument!("Labels length is zero in batch {b}"));
    }
    let blank = classes.saturating_sub(1);
    let (mut kept, mut is_finished) = (Vec::new(), false);
    for (i, &label) in labels.iter().enumerate() {
        let is_repeated = i > 0 && labels.get(i - 1) == Some(&label);
        if is_repeated && options.collapse {
            continue;
        }
        if i64::from(label) >= blank as i64 {
            is_finished = true;
        } else if is_finished {
            return Err(invalid_argument!(
                "Saw a non-null label (index >= num_classes - 1) following a null label, batch: \
                 {b} num_classes: {classes} labels: {} labels seen so far: {}",
                list(labels).trim_matches(['[', ']']),
                list(&kept).trim_matches(['[', ']'])
            ));
        } else {
            kept.push(label);
        }
    }
    if kept.iter().any(|&label| label < 0) {
        return Err(invalid_argument!(
            "All labels must be nonnegative integers, batch: {b} labels: {}",
            list(&kept).trim_matches(['[', ']'])
        ));
    }
    if !options.ignore_longer && labels.len() as i64 > i64::from(length) {
        return Err(invalid_argument!(
            "Not enough time for target transition sequence (required: {}, available: \
             {length}){b}You can turn this error into a warning by using the flag \
             ignore_longer_outputs_than_inputs",
            labels.len()
        ));
    }
    let mut all = Vec::with_capacity(2 * kept.len() + 1);
    for label in kept {
        all.extend([blank, label as usize]);
    }
    all.push(blank);
    Ok(all)
}

/// The loss of one element of the batch.
struct Job<'a, T> {
    loss: &'a mut T,
    /// A row for each step.
    gradient: Vec<&'a mut [T]>,
}

fn loss<T: Logarithm>(ctx: &mut KernelCtx, options: Options) -> Result<()> {
    let labels = labels(ctx)?;
    let shape = ctx.shape(0)?.clone();
    let (batch, classes) = (shape[1], shape[2]);
    let lengths = ctx.slice::<i32>(3)?;
    if let Some(b) = lengths.iter().position(|&n| n < 0) {
        return Err(invalid_argument!("seq_len({b}) < 0"));
    }
    let mut sequences = Vec::with_capacity(batch);
    for (b, (own, &length)) in labels.iter().zip(lengths).enumerate() {
        sequences.push(with_blanks(own, b, classes, length, options)?);
    }
    let logits = ctx.slice::<T>(0)?;
    let mut losses = Tensor::zeros(T::DTYPE, Shape::from([batch]))?;
    let mut gradient = Tensor::zeros(T::DTYPE, shape)?;
    let new = |loss| Job {
        loss,
        gradient: Vec::new(),
    };
    let mut jobs: Vec<Job<T>> = losses.slice_mut::<T>()?.iter_mut().map(new).collect();
    let rows = gradient.slice_mut::<T>()?.chunks_exact_mut(classes.max(1));
    for (i, row) in rows.enumerate() {
        if let Some(job) = jobs.get_mut(i % batch) {
            job.gradient.push(row);
        }
    }
    par_chunks_mut(ctx.par(), &mut jobs, 1, 1, &|b, job| {
        let n = lengths.get(b).map_or(0, |&n| n as usize);
        let is_ignored = options.ignore_longer && labels.get(b).is_some_and(|l| l.len() > n);
        let (Some(job), Some(sequence)) = (job.first_mut(), sequences.get(b)) else {
            return;
        };
        if n > 0 && !is_ignored && classes > 0 {
            let steps = logits.chunks_exact(classes).skip(b).step_by(batch).take(n);
            align(job, steps, sequence, options.merge);
        }
    });
    drop(jobs);
    ctx.set_output(0, losses)?;
    ctx.set_output(1, gradient)
}

/// Computes the loss and its gradient by the forward and the backward variables of a sequence of
/// labels and blanks.
fn align<'a, T: Logarithm>(
    job: &mut Job<T>,
    steps: impl Iterator<Item = &'a [T]>,
    sequence: &[usize],
    merge: bool,
) {
    let u = sequence.len();
    // The gradient's rows hold the probabilities until the end.
    let mut logs = Vec::new();
    for (row, logits) in job.gradient.iter_mut().zip(steps) {
        let most = logits.iter().fold(T::LOWEST, |m, &x| m.larger(x));
        let mut sum = T::ZERO;
        for (y, x) in row.iter_mut().zip(logits) {
            *y = x.sub(most).exp();
            sum = sum.add(*y);
        }
        row.iter_mut().for_each(|y| *y = y.div(sum));
        let log = |&class: &usize| row.get(class).map_or(T::LOWEST, |y| y.ln());
        logs.extend(sequence.iter().map(log));
    }
    let forward = forward(&logs, sequence, merge);
    let backward = backward(&logs, sequence, merge);
    let at_start = forward.iter().zip(&backward).take(u);
    let total = at_start.fold(T::LOWEST, |sum, (a, b)| sum.log_sum(a.add(*b)));
    *job.loss = total.neg();
    if total == T::LOWEST {
        return;
    }
    let classes = job.gradient.first().map_or(0, |row| row.len());
    let mut shares = vec![T::LOWEST; classes];
    let variables = forward.chunks_exact(u).zip(backward.chunks_exact(u));
    for (row, (forward, backward)) in job.gradient.iter_mut().zip(variables) {
        shares.fill(T::LOWEST);
        for ((&class, a), b) in sequence.iter().zip(forward).zip(backward) {
            if let Some(share) = shares.get_mut(class) {
                *share = share.log_sum(a.add(*b));
            }
        }
        for (y, share) in row.iter_mut().zip(&shares) {
            if *share != T::LOWEST {
                *y = y.sub(T::of_f32(share.sub(total).to_f32().exp()));
            }
        }
    }
}

/// Returns whether the position may be reached from two before: the label between is a blank that
/// alignments can leave out.
fn skips(sequence: &[usize], at: usize, before: usize, merge: bool) -> bool {
    let blank = sequence.first();
    let (to, from) = (sequence.get(at), sequence.get(before));
    to != blank && !(merge && to == from)
}

/// The positions that are on a path at step `t` of `n`.
fn reachable(u: usize, t: usize, n: usize) -> std::ops::Range<usize> {
    u.saturating_sub(2 * (n - t))..u.min(2 * (t + 1))
}

/// Returns the logarithms of the probabilities of the beginnings of alignments, step by step.
fn forward<T: Logarithm>(logs: &[T], sequence: &[usize], merge: bool) -> Vec<T> {
    let u = sequence.len();
    let n = logs.len() / u.max(1);
    let mut all = vec![T::LOWEST; logs.len()];
    for (to, &log) in all.iter_mut().zip(logs).take(u.min(2)) {
        *to = log;
    }
    let blank = sequence.first();
    for t in 1..n {
        let (before, now) = all.split_at_mut(t * u);
        let before = before.get((t - 1) * u..).unwrap_or_default();
        let get = |i: usize| before.get(i).copied().unwrap_or(T::LOWEST);
        for i in reachable(u, t, n) {
            let mut sum = T::LOWEST;
            if merge || sequence.get(i) == blank {
                sum = get(i);
            }
            if i > 0 {
                sum = sum.log_sum(get(i - 1));
            }
            if i > 1 && skips(sequence, i, i - 2, merge) {
                sum = sum.log_sum(get(i - 2));
            }
            let log = logs.get(t * u + i).copied().unwrap_or(T::LOWEST);
            if let Some(to) = now.get_mut(i) {
                *to = log.add(sum);
            }
        }
    }
    all
}

/// Returns the logarithms of the probabilities of the ends of alignments, step by step.
fn backward<T: Logarithm>(logs: &[T], sequence: &[usize], merge: bool) -> Vec<T> {
    let u = sequence.len();
    let n = logs.len() / u.max(1);
    let mut all = vec![T::LOWEST; logs.len()];
    // A sequence of one blank has one position; as in TensorFlow, its second end is the step before.
    for to in all.iter_mut().rev().take(2) {
        *to = T::ZERO;
    }
    let blank = sequence.first();
    for t in (0..n.saturating_sub(1)).rev() {
        let (now, after) = all.split_at_mut((t + 1) * u);
        let log_after = logs.get((t + 1) * u..).unwrap_or_default();
        let get = |i: usize| {
            let pair = after.get(i).zip(log_after.get(i));
            pair.map_or(T::LOWEST, |(a, log)| a.add(*log))
        };
        for i in reachable(u, t, n) {
            let mut sum = now.get(t * u + i).copied().unwrap_or(T::LOWEST);
            if merge || sequence.get(i) == blank {
                sum = sum.log_sum(get(i));
            }
            if i + 1 < u {
                sum = sum.log_sum(get(i + 1));
            }
            // The label at `i` is left for the one after the next blank.
            let is_label = sequence.get(i) != blank;
            if i + 2 < u && is_label && skips(sequence, i, i + 2, merge) {
                sum = sum.log_sum(get(i + 2));
            }
            if let Some(to) = now.get_mut(t * u + i) {
                *to = sum;
            }
        }
    }
    all
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let (y, dy) = (g.y(1), g.dy(0));
    let message = "Currently there is no way to take the second  derivative of ctc_loss due to the \
                   fused implementation's interaction with tf.gradients()";
    let attrs = [("message", message.into())];
    let dx = y.op_with("PreventGradient", &[], &attrs);
    g.set(0, dy.op("ExpandDims", &[dy.int(-1)]) * dx)
}
