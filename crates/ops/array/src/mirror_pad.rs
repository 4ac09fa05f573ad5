//! MirrorPad and MirrorPadGrad (TensorFlow: `core/kernels/image/mirror_pad_op.cc`).

use crate::pad::{Margins, margins, margins_input, pad_shape, padded};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, constant};
use ferroflow_functors::strided::{par_rows, unravel};
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{
    Complex32, Complex64, Element, Item, PartialShape, Shape, Tensor, bf16, dispatch,
    dispatch_items, f16,
};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "MirrorPad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type \
         {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(pad_shape)
    .kernel(mirror_pad)
    .gradient(mirror_pad_gradient),
    Op::new(
        "MirrorPadGrad",
        "input: T, paddings: Tpaddings -> output: T | T: type; Tpaddings: type \
         {int32,int64} = int32; mode: string {'REFLECT','SYMMETRIC'}",
    )
    .shape(mirror_pad_grad_shape)
    .kernel(mirror_pad_grad)
    .gradient(mirror_pad_grad_gradient),
];

fn mode_offset(build: &KernelBuild) -> Result<usize> {
    // REFLECT omits the border, SYMMETRIC repeats it.
    Ok(if build.attrs.str("mode")? == "REFLECT" {
        1
    } else {
        0
    })
}

fn check_mirror(shape: &[usize], margins: &Margins, offset: usize) -> Result<()> {
    for (&d, m) in shape.iter().zip(margins) {
        if m.0.saturating_add(offset) > d.max(offset) && m.0 > 0
            || m.1.saturating_add(offset) > d.max(offset) && m.1 > 0
        {
            let [must, but] = match offset {
                1 => ["less than", "not less than"],
                _ => ["no greater than", "greater than"],
            };
            let (before, after) = m;
            return Err(invalid_argument!(
                "paddings must be {must} the dimension size: {before}, {after} {but} {d}"
            ));
        }
    }
    Ok(())
}

/// Returns the input index for output index `i` of a mirrored dimension.
fn mirrored(i: usize, before: usize, d: usize, offset: usize) -> usize {
    if i < before {
        before - 1 - i + offset
    } else if i < before + d {
        i - before
    } else {
        2 * d + before - 1 - i - offset
    }
}

fn mirror_pad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let offset = mode_offset(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let shape = input.shape();
        let margins = margins_input(ctx, shape.rank(), "paddings")?;
        check_mirror(shape, &margins, offset)?;
        let out_shape = padded(shape, &margins)?;
        if &out_shape == shape {
            let same = ctx.take_input(0)?;
            return ctx.set_output(0, same);
        }
        let mut out = ctx.alloc(input.dtype(), out_shape.clone())?;
        let mirror = Mirror {
            shape,
            out_shape: &out_shape,
            margins: &margins,
            offset,
            // A row is the last padded dimension with those inside it.
            last: margins.iter().rposition(|m| *m != (0, 0)).unwrap_or(0),
        };
        dispatch_items!(input.dtype(), T => {
            mirror_rows::<T>(ctx.par(), &mirror, input.items()?, out.items_mut()?);
        });
        ctx.set_output(0, out)
    }))
}

struct Mirror<'a> {
    shape: &'a [usize],
    out_shape: &'a [usize],
    margins: &'a Margins,
    offset: usize,
    last: usize,
}

impl Mirror<'_> {
    /// Returns the input row of an output row.
    fn row(&self, row: usize) -> usize {
        let mut coords = SmallVec::<[usize; 8]>::from_elem(0, self.last);
        unravel(row, &self.out_shape[..self.last], &mut coords);
        (0..self.last).fold(0, |f, i| {
            let (d, before) = (self.shape[i], self.margins[i].0);
            f * d + mirrored(coords[i], before, d, self.offset)
        })
    }
}

fn mirror_rows<T: Item>(par: &dyn Parallelism, m: &Mirror, src: &[T], out: &mut [T]) {
    let inner: usize = m.shape[m.last + 1..].iter().product();
    let (n, before) = (m.shape[m.last], m.margins[m.last].0);
    par_rows(par, out, m.out_shape[m.last] * inner, &|row, to| {
        let from = m.row(row);
        let from = &src[from * n * inner..(from + 1) * n * inner];
        to[before * inner..(before + n) * inner].clone_from_slice(from);
        let total = to.len() / inner.max(1);
        for i in (0..before).chain(before + n..total) {
            let j = mirrored(i, before, n, m.offset);
            to[i * inner..(i + 1) * inner].clone_from_slice(&from[j * inner..(j + 1) * inner]);
        }
    });
}

fn mirror_pad_grad_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.input(0);
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match constant(ctx, 1) {
        Some(values) if values.len() == 2 * dims.len() => {
            let m = margins(&values, "paddings")?;
            indices::partial(dims.len(), |i| {
                dims[i]?.checked_sub(m[i].0)?.checked_sub(m[i].1)
            })
        }
        _ => PartialShape::of_rank(dims.len()),
    };
    ctx.set(0, shape);
    Ok(())
}

/// Folds margins back: adds every element of the padded tensor to the one it mirrors.
fn fold(ctx: &mut KernelCtx, offset: usize, add: AddRow) -> Result<()> {
    let input = ctx.input(0)?;
    let padded = input.shape();
    let margins = margins_input(ctx, padded.rank(), "paddings")?;
    let shape: Shape = padded
        .iter()
        .zip(&margins)
        .map(|(d, m)| {
            d.checked_sub(m.0.saturating_add(m.1)).ok_or_else(|| {
                invalid_argument!(
                    "Total paddings must be less than the input dimension size: {} was not less \
                     than {d}",
                    m.0.saturating_add(m.1)
                )
            })
        })
        .collect::<Result<_>>()?;
    check_mirror(&shape, &margins, offset)?;
    let mut out = Tensor::zeros(input.dtype(), shape.clone())?;
    // Rows along the last dimension.
    let last = shape.rank().saturating_sub(1);
    let width = padded.get(last).copied().unwrap_or(1);
    let n = shape.get(last).copied().unwrap_or(1);
    let before = margins.get(last).map_or(0, |m| m.0);
    let columns: Vec<usize> = (0..width).map(|i| mirrored(i, before, n, offset)).collect();
    let mut coords = SmallVec::<[usize; 8]>::from_elem(0, last);
    for row in 0..padded[..last].iter().product() {
        unravel(row, &padded[..last], &mut coords);
        let at = (0..last).fold(0, |f, i| {
            f * shape[i] + mirrored(coords[i], margins[i].0, shape[i], offset)
        });
        add(input, row * width, &columns, &mut out, at * n)?;
    }
    ctx.set_output(0, out)
}

/// Adds the row of the first tensor at a place to that of the second one: each element to the given column.
type AddRow = fn(&Tensor, usize, &[usize], &mut Tensor, usize) -> Result<()>;

#[inline(always)]
fn add_row<T: Element>(
    add: impl Fn(T, T) -> T,
    from: &Tensor,
    start: usize,
    columns: &[usize],
    to: &mut Tensor,
    at: usize,
) -> Result<()> {
    let from = &from.slice::<T>()?[start..];
    let to = &mut to.slice_mut::<T>()?[at..];
    for (&column, &v) in columns.iter().zip(from) {
        to[column] = add(to[column], v);
    }
    Ok(())
}

fn mirror_pad_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let offset = mode_offset(build)?;
    let dtype = build.input(0)?;
    macro_rules! row {
        ($ty:ty, $add:expr) => {
            |from, start, columns, to, at| add_row::<$ty>($add, from, start, columns, to, at)
        };
    }
    let add: AddRow = dispatch!(dtype, T in [i8, u8, i16, u16, i32, u32, i64, u64] => row!(T, T::wrapping_add),
        else dispatch!(dtype, T in [f32, f64, f16, bf16, Complex32, Complex64] => row!(T, |a, b| a + b),
            else return Err(build.unsupported(dtype))));
    Ok(Box::new(move |ctx: &mut KernelCtx| fold(ctx, offset, add)))
}

fn mirror_pad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .dy(0)
        .op_with("MirrorPadGrad", &[g.x(1)], &[g.attr("mode")]);
    g.set(0, dx)
}

fn mirror_pad_grad_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op_with("MirrorPad", &[g.x(1)], &[g.attr("mode")]);
    g.set(0, dx)
}
