//! Copy, CopyHost, DebugIdentity, DebugIdentityV2, DebugIdentityV3, DebugNanCount,
//! DebugNumericSummary, DebugNumericSummaryV2 (TensorFlow: `core/kernels/debug_ops.h`).
//!
//! Tensors are computed and passed on, but not published: nodes with `debug_urls` are refused.

use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "Copy",
        "input: T -> output: T | T: type; tensor_name: string = ''; debug_ops_spec: \
         list(string) = [] | uninit",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(copy),
    Op::new(
        "CopyHost",
        "input: T -> output: T | T: type; tensor_name: string = ''; debug_ops_spec: \
         list(string) = [] | uninit",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(copy),
    Op::new(
        "DebugIdentity",
        "input: T -> output: T | T: type; device_name: string = ''; tensor_name: string = \
         ''; debug_urls: list(string) = []; gated_grpc: bool = false | uninit",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(|b| {
        check_watch(b)?;
        Ok(Box::new(pass))
    }),
    Op::new(
        "DebugIdentityV2",
        "input: T -> output: T | T: type; tfdbg_context_id: string = ''; op_name: string = ''; \
         output_slot: int = -1; tensor_debug_mode: int = -1; debug_urls: list(string) = []; \
         circular_buffer_size: int = 1000; tfdbg_run_id: string = '' | stateful",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(|b| {
        let urls = b.attrs.strs("debug_urls")?;
        if let Some(url) = urls.iter().find(|url| !url.starts_with("file://")) {
            return Err(internal!("Unsupported debug URL schema in: {url}"));
        }
        check_unpublished(b)?;
        Ok(Box::new(pass))
    })
    .gradient(|g| g.set(0, g.dy(0))),
    Op::new(
        "DebugIdentityV3",
        "input: T -> output: T | T: type; device_name: string = ''; tensor_name: string = \
         ''; io_of_node: string = ''; is_input: bool = false; io_index: int = -1; \
         debug_urls: list(string) = []; gated_grpc: bool = false | stateful uninit",
    )
    .shape(shapes::unchanged)
    .cost(Cost::Cheap)
    .kernel(|b| {
        check_watch(b)?;
        Ok(Box::new(pass))
    }),
    Op::new(
        "DebugNanCount",
        "input: T -> output: int64 | T: type; device_name: string = ''; tensor_name: \
         string = ''; debug_urls: list(string) = []; gated_grpc: bool = false | uninit",
    )
    .shape(|ctx: &mut ShapeCtx| {
        ctx.set(0, PartialShape::of([Some(1)]));
        Ok(())
    })
    .kernel(nan_count),
    Op::new(
        "DebugNumericSummary",
        "input: T -> output: double | T: type; device_name: string = ''; tensor_name: \
         string = ''; debug_urls: list(string) = []; lower_bound: float = -inf; \
         upper_bound: float = inf; mute_if_healthy: bool = false; gated_grpc: bool = \
         false | uninit",
    )
    .kernel(numeric_summary),
    Op::new(
        "DebugNumericSummaryV2",
        "input: T -> output: output_dtype | output_dtype: type {float,double} = float; T: \
         type; tensor_debug_mode: int = -1; tensor_id: int = -1",
    )
    .shape(health_shape)
    .kernel(health),
];

fn pass(ctx: &mut KernelCtx) -> Result<()> {
    let t = ctx.take_input(0)?;
    ctx.set_output(0, t)
}

fn copy(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    for spec in build.attrs.strs("debug_ops_spec")? {
        if spec.split(';').count() != 3 {
            return Err(internal!(
                "Unexpected number of semicolons in debug_ops_spec element: {spec}"
            ));
        }
    }
    Ok(Box::new(pass))
}

/// Checks the attrs that name the watched tensor and where it is published.
fn check_watch(build: &KernelBuild) -> Result<()> {
    let name = build.attrs.str("tensor_name")?;
    let parts: Vec<&str> = name.split(':').collect();
    match parts[..] {
        [one] if !one.is_empty() => {}
        [_, slot] if slot.trim().parse::<i32>().is_ok() => {}
        [_, slot] => {
            return Err(invalid_argument!(
                "Invalid string value for output_slot: \"{slot}\""
            ));
        }
        _ => {
            return Err(invalid_argument!("Failed to parse tensor name: \"{name}\""));
        }
    }
    check_unpublished(build)
}

/// Refuses nodes that publish their tensor.
fn check_unpublished(build: &KernelBuild) -> Result<()> {
    if let Some(url) = build.attrs.strs("debug_urls")?.first() {
        return Err(unimplemented_error!(
            "tensors are not published to debug URLs such as {url}: remove the attr debug_urls"
        ));
    }
    Ok(())
}

/// Returns the elements as doubles, if the dtype has a kernel.
fn doubles(t: &Tensor) -> Result<Vec<f64>> {
    let dtype = t.dtype();
    Ok(match dtype {
        DType::Double => t.slice::<f64>()?.to_vec(),
        DType::Half => t.slice::<f16>()?.iter().map(|x| x.to_f64()).collect(),
        DType::Bfloat16 => t.slice::<bf16>()?.iter().map(|x| x.to_f64()).collect(),
        DType::Bool => {
            let values = t.slice::<bool>()?.iter();
            values.map(|&x| f64::from(u8::from(x))).collect()
        }
        _ => dispatch!(dtype, T in [f32, i8, u8, i16, u16, i32, u32, i64, u64] =>
            t.slice::<T>()?.iter().map(|&x| x as f64).collect(),
            else return Err(internal!("no summary of {dtype} tensors"))),
    })
}

fn has_doubles(dtype: DType) -> bool {
    Tensor::zeros(dtype, [0].into()).is_ok_and(|t| doubles(&t).is_ok())
}

fn nan_count(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    check_watch(build)?;
    let dtype = build.input(0)?;
    if !has_doubles(dtype) || dtype == DType::Bool {
        return Err(build.unsupported(dtype));
    }
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let n = doubles(ctx.input(0)?)?
            .iter()
            .filter(|x| x.is_nan())
            .count();
        ctx.set_output(0, Tensor::from_slice([1], &[n as i64])?)
    }))
}

fn numeric_summary(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    check_watch(build)?;
    let dtype = build.input(0)?;
    if !has_doubles(dtype) || matches!(dtype, DType::Bfloat16 | DType::Half) {
        return Err(build.unsupported(dtype));
    }
    let low = f64::from(build.attrs.float("lower_bound")?);
    let high = f64::from(build.attrs.float("upper_bound")?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let t = ctx.input(0)?;
        let values = doubles(t)?;
        let mut counts = Counts::default();
        let (mut min, mut max, mut sum, mut n) = (f64::INFINITY, f64::NEG_INFINITY, 0.0, 0.0);
        for &x in &values {
            let is_low = !low.is_infinite() && x <= low;
            let is_high = !high.is_infinite() && x >= high;
            match x {
                _ if !x.is_finite() => counts.add(x),
                _ if is_low => counts.add(f64::NEG_INFINITY),
                _ if is_high => counts.add(f64::INFINITY),
                _ => counts.add(x),
            }
            if x.is_finite() {
                min = if x < min { x } else { min };
                max = if x > max { x } else { max };
                sum += x;
                n += 1.0;
            }
        }
        let (mut mean, mut variance) = (f64::NAN, f64::NAN);
        if n > 0.0 {
            mean = sum / n;
            let finite = values.iter().filter(|x| x.is_finite());
            variance = finite.fold(0.0, |sum, x| sum + (x - mean) * (x - mean)) / n;
        }
        let c = counts;
        let mut out = vec![1.0, values.len() as f64];
        out.extend([
            c.nan,
            c.negative_inf,
            c.negative,
            c.zero,
            c.positive,
            c.positive_inf,
        ]);
        let rank = t.shape().len();
        out.extend([min, max, mean, variance, dtype as i32 as f64, rank as f64]);
        out.extend(t.shape().iter().map(|&n| n as f64));
        ctx.set_output(0, Tensor::vector(&out)?)
    }))
}

#[derive(Clone, Copy, Default)]
struct Counts {
    nan: f64,
    negative_inf: f64,
    negative: f64,
    zero: f64,
    positive: f64,
    positive_inf: f64,
}

impl Counts {
    fn add(&mut self, x: f64) {
        *(match x {
            _ if x.is_nan() => &mut self.nan,
            f64::NEG_INFINITY => &mut self.negative_inf,
            f64::INFINITY => &mut self.positive_inf,
            _ if x < 0.0 => &mut self.negative,
            _ if x > 0.0 => &mut self.positive,
            _ => &mut self.zero,
        }) += 1.0;
    }

    fn of(values: &[f64]) -> Counts {
        let mut counts = Counts::default();
        values.iter().for_each(|&x| counts.add(x));
        counts
    }
}

/// The summaries of DebugNumericSummaryV2, with TensorFlow's numbers (`tfdbg` modes).
const CURT_HEALTH: i64 = 2;
const CONCISE_HEALTH: i64 = 3;
const FULL_HEALTH: i64 = 4;
const SHAPE: i64 = 5;
const REDUCE_INF_NAN: i64 = 8;

fn health_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let n = match ctx.attrs().int("tensor_debug_mode")? {
        CURT_HEALTH => Some(2),
        CONCISE_HEALTH => Some(5),
        FULL_HEALTH => Some(11),
        SHAPE => Some(10),
        REDUCE_INF_NAN => Some(3),
        _ => None,
    };
    ctx.set(
        0,
        match n {
            Some(n) => PartialShape::of([Some(n)]),
            None => PartialShape::unknown(),
        },
    );
    Ok(())
}

fn health(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if !has_doubles(dtype) {
        return Err(build.unsupported(dtype));
    }
    let mode = build.attrs.int("tensor_debug_mode")?;
    let id = build.attrs.int("tensor_id")?;
    let output = build.output(0)?;
    let digits = if output == DType::Float { 24 } else { 53 };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if mode != REDUCE_INF_NAN && id > 1 << digits {
            return Err(invalid_argument!(
                "DebugNumericSummaryV2Op requires tensor_id to be less than or equal to \
                 (2^{digits}). Given tensor_id:{id}"
            ));
        }
        let t = ctx.input(0)?;
        let values = doubles(t)?;
        let (id, n, rank) = (id as f64, values.len() as f64, t.shape().len());
        let c = Counts::of(&values);
        let number = dtype as i32 as f64;
        let bad = c.nan + c.negative_inf + c.positive_inf;
        let out = match mode {
            CURT_HEALTH => vec![id, f64::from(u8::from(bad > 0.0))],
            CONCISE_HEALTH => vec![id, n, c.negative_inf, c.positive_inf, c.nan],
            FULL_HEALTH => {
                let mut out = vec![id, -1.0, number, rank as f64, n];
                out.extend([
                    c.negative_inf,
                    c.positive_inf,
                    c.nan,
                    c.negative,
                    c.zero,
                    c.positive,
                ]);
                out
            }
            SHAPE => {
                let mut out = vec![id, number, rank as f64, n];
                out.extend(
                    t.shape()
                        .iter()
                        .skip(rank.saturating_sub(6))
                        .map(|&n| n as f64),
                );
                out.resize(10, 0.0);
                out
            }
            REDUCE_INF_NAN => {
                let found = |n: f64, value: f64| if n > 0.0 { value } else { 0.0 };
                vec![
                    found(c.negative_inf, f64::NEG_INFINITY),
                    found(c.positive_inf, f64::INFINITY),
                    found(c.nan, f64::NAN),
                ]
            }
            _ => {
                return Err(unimplemented_error!(
                    "Unimplemented tensor debug mode: {mode}"
                ));
            }
        };
        let out = match output {
            DType::Float => Tensor::vector(&out.iter().map(|&x| x as f32).collect::<Vec<f32>>())?,
            _ => Tensor::vector(&out)?,
        };
        ctx.set_output(0, out)
    }))
}
