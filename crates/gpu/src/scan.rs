//! Sums so far, and the largest elements, along a dimension; one of several classes.

use crate::elementwise::grid;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row, axis, int, suffix};
use crate::rows::{blocks, threads};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[
    Row::new("Cumsum", scan).host(&["axis"]),
    Row::new("Cumprod", scan).host(&["axis"]),
    Row::new("ArgMax", arg).types(ARG).host(&["dimension"]),
    Row::new("ArgMin", arg).types(ARG).host(&["dimension"]),
    Row::new("TopKV2", top_k)
        .types(&[("T", FLOATS), ("index_type", &[DType::Int32, DType::Int64])])
        .host(&["k"])
        .only_if(|attrs| attrs.bool("sorted").is_ok_and(|sorted| sorted)),
    Row::new("OneHot", one_hot)
        .types(&[("T", FLOATS), ("TI", &[DType::Int32, DType::Int64])])
        .host(&["depth"]),
];

const ARG: &[(&str, &[DType])] = &[
    ("T", FLOATS),
    ("output_type", &[DType::Int32, DType::Int64]),
];

/// The number in input `i`, a scalar.
fn number(ctx: &GpuCtx, i: usize, name: &str) -> Result<i64> {
    let t = ctx.host(i)?;
    match (t.shape().is_scalar(), &ctx.ints(i)?[..]) {
        (true, [n]) => Ok(*n),
        _ => Err(invalid_argument!(
            "{name} must be a scalar, but received tensor of shape: {}",
            t.shape()
        )),
    }
}

/// The sizes before, of and behind a dimension.
fn around(shape: &Shape, at: usize) -> [usize; 3] {
    let size = |dims: &[usize]| dims.iter().product::<usize>();
    [size(&shape[..at]), shape[at], size(&shape[at + 1..])]
}

fn scan(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let attr = |name: &str| build.attrs.bool(name).map(i32::from);
    let (exclusive, reverse) = (attr("exclusive")?, attr("reverse")?);
    let is_product = i32::from(build.def.name == "Cumprod");
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, along) = (ctx.input(0)?, number(ctx, 1, "axis")?);
        let rank = x.shape().rank();
        if rank == 0 && [0, -1].contains(&along) {
            return ctx.set_output(0, x);
        }
        let at = axis(along, rank).map_err(|_| {
            invalid_argument!(
                "ScanOp: Expected scan axis in the range [{}, {rank}), but got {along}",
                -(rank as i64)
            )
        })?;
        let y = ctx.alloc(x.dtype(), x.shape().clone())?;
        let [outer, n, inner] = around(x.shape(), at);
        if y.num_elements() > 0 {
            let count = outer * inner;
            let args = [
                TensorArg::Tensor(&x),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(count)?),
                TensorArg::I32(int(n)?),
                TensorArg::I32(int(inner)?),
                TensorArg::I32(exclusive),
                TensorArg::I32(reverse),
                TensorArg::I32(is_product),
            ];
            int(x.num_elements())?;
            ctx.run(&format!("scan_{}", suffix(x.dtype())?), &grid(count), &args)?;
        }
        ctx.set_output(0, y)
    }))
}

fn arg(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let is_max = i32::from(build.def.name == "ArgMax");
    let dtype = build.output(0)?;
    let is_long = i32::from(dtype == DType::Int64);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, along) = (ctx.input(0)?, number(ctx, 1, "dim")?);
        let at = axis(along, x.shape().rank())?;
        let [outer, n, inner] = around(x.shape(), at);
        if n == 0 {
            return Err(invalid_argument!(
                "Reduction axis {at} is empty in shape {}",
                x.shape()
            ));
        }
        let dims = x.shape().iter().enumerate().filter(|(d, _)| *d != at);
        let y = ctx.alloc(dtype, dims.map(|(_, n)| *n).collect::<Shape>())?;
        let count = outer * inner;
        if count > 0 {
            let args = [
                TensorArg::Tensor(&x),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(count)?),
                TensorArg::I32(int(n)?),
                TensorArg::I32(int(inner)?),
                TensorArg::I32(is_max),
                TensorArg::I32(is_long),
            ];
            // A warp for each result, or a thread.
            let threads = if inner == 1 { count * 32 } else { count };
            int(threads)?;
            ctx.run(
                &format!("arg_{}", suffix(x.dtype())?),
                &grid(threads),
                &args,
            )?;
        }
        ctx.set_output(0, y)
    }))
}

fn one_hot(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let wanted = build.attrs.int("axis")?;
    let index = match build.input(0)? {
        DType::Int64 => "i64",
        _ => "i32",
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (indices, depth) = (ctx.input(0)?, number(ctx, 1, "depth")?);
        let (on, off) = (ctx.input(2)?, ctx.input(3)?);
        for (t, name) in [(&on, "on_value"), (&off, "off_value")] {
            if !t.shape().is_scalar() {
                return Err(invalid_argument!(
                    "{name} must be a scalar, but got: {}",
                    t.shape()
                ));
            }
        }
        let rank = indices.shape().rank();
        let at = match wanted {
            -1 => rank,
            _ => usize::try_from(wanted)
                .ok()
                .filter(|a| *a <= rank)
                .ok_or_else(|| {
                    invalid_argument!(
                        "Expected axis to be -1 or between [0, {rank}], but got {wanted}"
                    )
                })?,
        };
        let depth = usize::try_from(depth)
            .map_err(|_| invalid_argument!("depth must be non-negative, got: {depth}"))?;
        let inner: usize = indices.shape()[at..].iter().product();
        let mut dims = indices.shape().to_vec();
        dims.insert(at, depth);
        let y = ctx.alloc(on.dtype(), &dims[..])?;
        let count = y.num_elements();
        if count > 0 {
            let args = [
                TensorArg::Tensor(&indices),
                TensorArg::Tensor(&on),
                TensorArg::Tensor(&off),
                TensorArg::Tensor(&y),
                TensorArg::I32(int(count)?),
                TensorArg::I32(int(depth)?),
                TensorArg::I32(int(inner)?),
            ];
            let name = format!("one_hot_{}_{index}", Tensor::dtype(&on).size());
            ctx.run(&name, &grid(count), &args)?;
        }
        ctx.set_output(0, y)
    }))
}

fn top_k(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let index = build.output(1)?;
    let is_long = i32::from(index == DType::Int64);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (x, k) = (ctx.input(0)?, number(ctx, 1, "k")?);
        let Some((&n, outer)) = x.shape().split_last() else {
            return Err(invalid_argument!("input must be >= 1-D, got shape []"));
        };
        let k = usize::try_from(k).map_err(|_| invalid_argument!("Need k >= 0, got {k}"))?;
        if k > n {
            return Err(invalid_argument!(
                "input must have at least k columns. Had {n}, needed {k}"
            ));
        }
        let rows: usize = outer.iter().product();
        let shape: Shape = outer.iter().copied().chain([k]).collect();
        let values = ctx.alloc(x.dtype(), shape.clone())?;
        let indices = ctx.alloc(index, shape)?;
        if values.num_elements() > 0 {
            let args = [
                TensorArg::Tensor(&x),
                TensorArg::Tensor(&values),
                TensorArg::Tensor(&indices),
                TensorArg::I32(int(n)?),
                TensorArg::I32(int(k)?),
                TensorArg::I32(is_long),
            ];
            int(rows)?;
            let name = format!("top_k_{}", suffix(x.dtype())?);
            ctx.run(&name, &blocks(rows, threads(n)), &args)?;
        }
        ctx.set_output(0, values)?;
        ctx.set_output(1, indices)
    }))
}
