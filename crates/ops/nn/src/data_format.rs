//! DataFormatDimMap and DataFormatVecPermute (TensorFlow: `core/kernels/data_format_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Index, dispatch_index};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, dispatch};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DataFormatDimMap",
        "x: T -> y: T | T: type {int32,int64} = int32; src_format: string = 'NHWC'; dst_format: \
         string = 'NCHW'",
    )
    .shape(shapes::unchanged)
    .kernel(dim_map),
    Op::new(
        "DataFormatVecPermute",
        "x: T -> y: T | T: type {int32,int64} = int32; src_format: string = 'NHWC'; dst_format: \
         string = 'NCHW'",
    )
    .shape(|ctx| {
        let shape = ctx.with_rank_at_least(0, 1)?;
        if let Some(rank) = shape.rank().filter(|&rank| rank > 2) {
            return Err(invalid_argument!(
                "Shape must be at most rank 2 but is rank {rank}"
            ));
        }
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(vec_permute),
];

/// Returns the checked names of the dimensions before and after.
fn formats(build: &KernelBuild) -> Result<[Vec<char>; 2]> {
    let (from, to) = (
        build.attrs.str("src_format")?,
        build.attrs.str("dst_format")?,
    );
    for (name, short, format) in [("Source", "src", from), ("Destination", "dst", to)] {
        if format.len() != 4 && format.len() != 5 {
            return Err(invalid_argument!(
                "{name} format must be of length 4 or 5, received {short}_format = {format}"
            ));
        }
    }
    let (a, b): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let sorted = |names: &[char]| {
        let mut names = names.to_vec();
        names.sort_unstable();
        names
    };
    let (of_a, of_b) = (sorted(&a), sorted(&b));
    if of_a != of_b || of_a.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(invalid_argument!(
            "Destination and source format must determine a permutation, got {from} and {to}"
        ));
    }
    Ok([a, b])
}

/// Returns the position of each name of `from` in `to`.
fn places(from: &[char], to: &[char]) -> Vec<usize> {
    let place = |name| to.iter().position(|other| other == name);
    from.iter().filter_map(place).collect()
}

fn dim_map(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let [from, to] = formats(build)?;
    let (places, dtype) = (places(&from, &to), build.output(0)?);
    dispatch!(dtype, T in [i32, i64] => Ok(Box::new(move |ctx: &mut KernelCtx| {
        let n = places.len() as i64;
        let (mut out, input) = ctx.forward_or_alloc(&[0], dtype, ctx.shape(0)?.clone())?;
        let map = |x: T| {
            // The last dimension stands for everything out of range, as in TensorFlow.
            let at = (x.to_i64().wrapping_add(n)) % n;
            let at = usize::try_from(at).unwrap_or(places.len() - 1);
            T::from_i64(places.get(at).map_or(0, |&p| p as i64))
        };
        let to = out.slice_mut::<T>()?;
        match input {
            Some(_) => to.iter_mut().for_each(|x| *x = map(*x)),
            None => to.iter_mut().zip(ctx.slice::<T>(0)?).for_each(|(to, x)| *to = map(*x)),
        }
        ctx.set_output(0, out)
    })), else Err(build.unsupported(dtype)))
}

fn vec_permute(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let [from, to] = formats(build)?;
    let dtype = build.output(0)?;
    if !matches!(dtype, DType::Int32 | DType::Int64) {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(
        move |ctx: &mut KernelCtx| dispatch_index!(dtype, I => permute::<I>(ctx, &from, &to)),
    ))
}

fn permute<I: Index>(ctx: &mut KernelCtx, from: &[char], to: &[char]) -> Result<()> {
    let shape = ctx.shape(0)?.clone();
    let (full, spatial) = (from.len(), from.len() - 2);
    let fits = |n: usize| n == spatial || n == full;
    let (first, width) = match *shape.dims() {
        [n] if fits(n) => (n, 1),
        [_] => {
            return Err(invalid_argument!(
                "1D input must be of size {spatial} or {full}, but got shape {shape}"
            ));
        }
        [n, _] if !fits(n) => {
            return Err(invalid_argument!(
                "First dimension of 2D input must be of size {spatial} or {full}, but got shape \
                 {shape}"
            ));
        }
        [n, 2] => (n, 2),
        [_, _] => {
            return Err(invalid_argument!(
                "Second dimension of 2D input must be of size 2, but got shape {shape}"
            ));
        }
        _ => {
            return Err(invalid_argument!(
                "input must be a vector or 2D tensor, but got shape {shape}"
            ));
        }
    };
    let kept = |names: &[char]| -> Vec<char> {
        let is_spatial = |&&c: &&char| c == 'H' || c == 'W' || (spatial == 3 && c == 'D');
        names.iter().filter(is_spatial).copied().collect()
    };
    let (from, to) = match first == spatial {
        true => (kept(from), kept(to)),
        false => (from.to_vec(), to.to_vec()),
    };
    if from.len() != first {
        let names = if spatial == 3 {
            "D, H and W"
        } else {
            "H and W"
        };
        return Err(invalid_argument!(
            "Format specifier must contain {names} for 2D case"
        ));
    }
    let mut out = ctx.alloc(I::DTYPE, shape)?;
    let cells = out.slice_mut::<I>()?;
    let rows = ctx.slice::<I>(0)?.chunks_exact(width);
    for (row, place) in rows.zip(places(&from, &to)) {
        if let Some(to) = cells.get_mut(place * width..(place + 1) * width) {
            to.copy_from_slice(row);
        }
    }
    ctx.set_output(0, out)
}
