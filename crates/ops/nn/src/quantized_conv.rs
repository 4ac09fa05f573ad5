//! QuantizedConv2D (TensorFlow: `core/kernels/quantized_conv_ops.cc`).

use crate::conv::conv_shape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::quantized::{
    code_unclamped, codes, product_range, scalar_ranges, set_codes, set_range,
};
use ferroflow_functors::window::{Pad, Rule, ints32};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::int_gemm::{IntConv, PackedCodes, int_conv};
use ferroflow_tensor::{DType, Shape};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "QuantizedConv2D",
    "input: Tinput, filter: Tfilter, min_input: float, max_input: float, min_filter: float, \
     max_filter: float -> output: out_type, min_output: float, max_output: float | Tinput: type \
     {qint8,quint8,qint32,qint16,quint16}; Tfilter: type {qint8,quint8,qint32,qint16,quint16}; \
     out_type: type {qint8,quint8,qint32,qint16,quint16} = qint32; strides: list(int); padding: \
     string {'SAME','VALID'}; dilations: list(int) = [1,1,1,1]",
)
.shape(|ctx| {
    conv_shape(ctx)?;
    scalar_ranges(ctx, 2..6)
})
.cost(Cost::Expensive)
.kernel(kernel)];

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = [
        (build.input(0)?, DType::Quint8),
        (build.input(1)?, DType::Quint8),
        (build.output(0)?, DType::Qint32),
    ];
    // With filters of both signs, there are no zero points.
    if build.input(1)? == DType::Qint8 {
        return crate::quantized_fused::kernel(build);
    }
    if let Some((dtype, _)) = dtypes.iter().find(|(dtype, has)| dtype != has) {
        return Err(build.unsupported(*dtype));
    }
    let attrs = build.attrs;
    let (strides, dilations) = (ints32(attrs, "strides")?, ints32(attrs, "dilations")?);
    let check = |holds: bool, text: &str| match holds {
        true => Ok(()),
        false => Err(invalid_argument!("{text}")),
    };
    if strides.len() != 4 {
        return Err(invalid_argument!(
            "Conv2D on data format NHWC requires the stride attribute to contain 4 values, but \
             got: {}",
            strides.len()
        ));
    }
    if dilations.len() != 4 {
        return Err(invalid_argument!(
            "Conv2D requires the dilation attribute to contain 4 values, but got: {}",
            dilations.len()
        ));
    }
    check(
        strides[1] == strides[2],
        "Current implementation only supports equal length strides in the row and column \
         dimensions.",
    )?;
    check(
        strides[0] == 1 && strides[3] == 1,
        "Current implementation does not yet support strides in the batch and depth dimensions.",
    )?;
    check(
        dilations[1] == 1 && dilations[2] == 1,
        "Current implementation only supports dilated rate as 1 in the row and column dimensions.",
    )?;
    check(
        dilations[0] == 1 && dilations[3] == 1,
        "Current implementation does not yet support dilations in the batch and depth dimensions.",
    )?;
    let pad = match attrs.str("padding")? {
        "VALID" => Pad::Valid,
        _ => Pad::Same,
    };
    let rule = Rule {
        stride: strides[1],
        dilation: 1,
        pad,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| convolved(ctx, rule)))
}

fn check_inputs(ctx: &KernelCtx) -> Result<[f32; 4]> {
    let (input, filter) = (ctx.shape(0)?, ctx.shape(1)?);
    if input.contains(&0) {
        return Err(invalid_argument!(
            "Invalid input: Shapes dimension cannot be 0."
        ));
    }
    for (shape, name) in [(input, "input"), (filter, "filter")] {
        if shape.rank() != 4 {
            return Err(invalid_argument!(
                "{name} must be rank 4 but is rank {}",
                shape.rank()
            ));
        }
    }
    let mut ends = [0.0; 4];
    let names = ["min_input", "max_input", "min_filter", "max_filter"];
    for (i, name) in names.into_iter().enumerate() {
        let t = ctx.input(i + 2)?;
        ends[i] = match t.shape().rank() {
            0 => t.to_scalar()?,
            rank => {
                return Err(invalid_argument!(
                    "{name} must be rank 0 but is rank {rank}"
                ));
            }
        };
    }
    if input[3] != filter[2] {
        return Err(invalid_argument!(
            "input and filter must have the same depth: {} vs {}",
            input[3],
            filter[2]
        ));
    }
    if filter.contains(&0) {
        return Err(invalid_argument!(
            "filter patch must contain at least one element"
        ));
    }
    Ok(ends)
}

/// Places the windows as TensorFlow does: they are centered even without padding.
fn place(rule: Rule, input: &Shape, filter: &Shape) -> Result<IntConv> {
    let (mut output, mut before) = ([0; 2], [0; 2]);
    for i in 0..2 {
        let placed = rule.place(input[i + 1], filter[i])?;
        if placed.output == 0 {
            let name = ["height", "width"][i];
            return Err(invalid_argument!("output_{name} must be strictly positive"));
        }
        output[i] = placed.output;
        let reach = ((placed.output - 1) * placed.stride + filter[i]) as isize;
        let over = reach - input[i + 1] as isize;
        before[i] = match rule.pad {
            Pad::Valid => (over + 1) / 2,
            _ => over / 2,
        };
    }
    Ok(IntConv {
        batch: input[0],
        input: [input[1], input[2]],
        in_c: input[3],
        filter: [filter[0], filter[1]],
        stride: [rule.stride as usize; 2],
        dilation: [1; 2],
        before,
        output,
    })
}

fn convolved(ctx: &mut KernelCtx, rule: Rule) -> Result<()> {
    let [min_input, max_input, min_filter, max_filter] = check_inputs(ctx)?;
    let (x, w) = (codes(ctx, 0)?, codes(ctx, 1)?);
    let s = place(rule, x.shape(), w.shape())?;
    let zero = code_unclamped::<u8>(0.0, min_input, max_input) as i32;
    let filter_zero = code_unclamped::<u8>(0.0, min_filter, max_filter) as i32;
    let (k, n) = (s.filter[0] * s.filter[1] * s.in_c, w.shape()[3]);
    let filter = PackedCodes::new(w.slice::<u8>()?, k, n, false, filter_zero);
    let mut out = ctx.alloc(
        DType::Int32,
        shape_of([s.batch, s.output[0], s.output[1], n])?,
    )?;
    let (from, to) = (x.slice::<u8>()?, out.slice_mut::<i32>()?);
    if zero >= -16_384 {
        // Outside, pixels have the code of zero, as far as it fits a byte.
        let pad = if zero < 0 { zero } else { zero & 0xff };
        int_conv(ctx.par(), &s, from, zero, pad, &filter, to);
    } else {
        // Zero is far outside the range: subtract its product with the pixels inside.
        let ones = vec![1u8; from.len()];
        let mut inside = vec![0i32; to.len()];
        int_conv(ctx.par(), &s, from, 0, 0, &filter, to);
        int_conv(ctx.par(), &s, &ones, 0, 0, &filter, &mut inside);
        for (to, inside) in to.iter_mut().zip(inside) {
            *to = to.wrapping_sub(inside.wrapping_mul(zero));
        }
    }
    set_codes(ctx, 0, out, DType::Qint32)?;
    let range = product_range::<u8, u8>([min_input, max_input], [min_filter, max_filter]);
    set_range(ctx, 1, range)
}
