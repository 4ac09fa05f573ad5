//! DrawBoundingBoxes and DrawBoundingBoxesV2 (TensorFlow:
//! `core/kernels/image/draw_bounding_box_op.cc`).

use crate::projective_transform::truncated;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, Element, Shape, Tensor, f16};

/// DrawBoundingBoxes, DrawBoundingBoxesV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "DrawBoundingBoxes",
        "images: T, boxes: float -> output: T | T: type {float,half} = float",
    )
    .shape(shape)
    .kernel(build)
    .not_differentiable(),
    Op::new(
        "DrawBoundingBoxesV2",
        "images: T, boxes: float, colors: float -> output: T | T: type {float,half} = float",
    )
    .shape(|ctx| {
        let images = ctx.with_rank_at_least(0, 3)?;
        ctx.set(0, images);
        Ok(())
    })
    .kernel(build),
];

/// The colors of boxes without given ones.
const COLORS: [[f32; 4]; 10] = [
    [1.0, 1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 1.0, 0.0, 1.0],
    [0.5, 0.0, 0.5, 1.0],
    [0.5, 0.5, 0.0, 1.0],
    [0.5, 0.0, 0.0, 1.0],
    [0.0, 0.0, 0.5, 1.0],
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (images, boxes) = (ctx.with_rank(0, 4)?, ctx.with_rank(1, 3)?);
    if images
        .dim(3)
        .is_some_and(|depth| !matches!(depth, 1 | 3 | 4))
    {
        return Err(wrong_depth());
    }
    if let Some(n) = boxes.dim(2)
        && n != 4
    {
        return Err(invalid_argument!("Dimension must be 4 but is {n}"));
    }
    ctx.set(0, images);
    Ok(())
}

fn wrong_depth() -> ferroflow_base::Status {
    invalid_argument!("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)")
}

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        check(ctx.shape(0)?, ctx.shape(1)?)?;
        let colors = colors(ctx)?;
        let mut out = ctx.take_input(0)?;
        let boxes = ctx.slice::<f32>(1)?;
        match dtype {
            DType::Half => draw(&mut out, boxes, &colors, f16::from_f32)?,
            _ => draw(&mut out, boxes, &colors, |x: f32| x)?,
        }
        ctx.set_output(0, out)
    }))
}

fn check(images: &Shape, boxes: &Shape) -> Result<()> {
    let &[batch, _, _, depth] = images.dims() else {
        return Err(invalid_argument!("The rank of the images should be 4"));
    };
    let &[box_batch, _, corners] = boxes.dims() else {
        return Err(invalid_argument!(
            "The rank of the boxes tensor should be 3"
        ));
    };
    if batch != box_batch {
        return Err(invalid_argument!("The batch sizes should be the same"));
    }
    if !matches!(depth, 1 | 3 | 4) {
        return Err(wrong_depth());
    }
    if corners != 4 {
        return Err(invalid_argument!(
            "The size of the third dimension of the box must be 4. Received: {corners}"
        ));
    }
    Ok(())
}

/// Returns the colors, `depth` numbers each.
fn colors(ctx: &KernelCtx) -> Result<Vec<Vec<f32>>> {
    let depth = ctx.shape(0)?[3];
    if ctx.num_inputs() == 3 {
        let shape = ctx.shape(2)?;
        let &[_, width] = shape.dims() else {
            return Err(invalid_argument!("colors must be a 2-D matrix{shape}"));
        };
        if width < depth {
            return Err(invalid_argument!(
                "colors must have equal or more channels than the image provided: {shape}"
            ));
        }
        if shape.num_elements() > 0 {
            let rows = ctx.slice::<f32>(2)?.chunks_exact(width);
            return Ok(rows.map(|color| color[..depth].to_vec()).collect());
        }
    }
    // Gray lines are white.
    Ok(match depth {
        1 => vec![vec![1.0]; COLORS.len()],
        _ => COLORS.iter().map(|color| color[..depth].to_vec()).collect(),
    })
}

fn draw<T: Element>(
    images: &mut Tensor,
    boxes: &[f32],
    colors: &[Vec<f32>],
    convert: fn(f32) -> T,
) -> Result<()> {
    let &[batch, height, width, depth] = images.shape().dims() else {
        return Ok(());
    };
    let pixels = images.slice_mut::<T>()?;
    if pixels.is_empty() || boxes.is_empty() {
        return Ok(());
    }
    let (rows, cols) = (height as i64, width as i64);
    let per_image = boxes.len() / batch;
    for (i, corners) in boxes.as_chunks::<4>().0.iter().enumerate() {
        let (image, nth) = (i / (per_image / 4), i % (per_image / 4));
        let color: Vec<T> = colors[nth % colors.len()]
            .iter()
            .map(|x| convert(*x))
            .collect();
        let at = |i: usize, size: i64| truncated(corners[i] * (size - 1) as f32);
        let (top, left, bottom, right) = (at(0, rows), at(1, cols), at(2, rows), at(3, cols));
        let inverted = top > bottom || left > right;
        if inverted || top >= rows || bottom < 0 || left >= cols || right < 0 {
            continue;
        }
        let ys = top.max(0)..=bottom.min(rows - 1);
        let xs = left.max(0)..=right.min(cols - 1);
        let mut set = |y: i64, x: i64| {
            let at = (image * height + y as usize) * width + x as usize;
            pixels[at * depth..][..depth].copy_from_slice(&color);
        };
        for y in [top, bottom].into_iter().filter(|y| ys.contains(y)) {
            xs.clone().for_each(|x| set(y, x));
        }
        for x in [left, right].into_iter().filter(|x| xs.contains(x)) {
            ys.clone().for_each(|y| set(y, x));
        }
    }
    Ok(())
}
