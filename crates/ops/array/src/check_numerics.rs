//! CheckNumerics: fails for NaN and infinities (TensorFlow: `core/kernels/check_numerics_op.cc`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Tensor, bf16, f16};

/// CheckNumerics, CheckNumericsV2.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "CheckNumerics",
        "tensor: T -> output: T | T: type {bfloat16,half,float,double}; message: \
         string | stateful",
    )
    .shape(shapes::unchanged)
    .kernel(|build| check(build, Found::without_signs))
    .gradient(gradient),
    Op::new(
        "CheckNumericsV2",
        "tensor: T -> output: T | T: type {bfloat16,half,float,double}; message: \
         string | stateful",
    )
    .shape(shapes::unchanged)
    .kernel(|build| check(build, Found::with_signs))
    .gradient(gradient),
];

/// The kinds of values found.
#[derive(Clone, Copy, Default)]
struct Found {
    nan: bool,
    minus: bool,
    plus: bool,
}

impl Found {
    fn note(&mut self, v: f64) {
        self.nan |= v.is_nan();
        self.plus |= v == f64::INFINITY;
        self.minus |= v == f64::NEG_INFINITY;
    }

    fn without_signs(self) -> String {
        let inf = (self.minus || self.plus).then_some("Inf");
        let nan = self.nan.then_some("NaN");
        inf.into_iter().chain(nan).collect::<Vec<_>>().join(" and ")
    }

    fn with_signs(self) -> String {
        let seen = [(self.minus, "-Inf"), (self.plus, "+Inf"), (self.nan, "NaN")];
        let seen: Vec<&str> = seen.iter().filter(|(s, _)| *s).map(|(_, n)| *n).collect();
        match seen[..] {
            [a, b, c] => format!("{a}, {b}, and {c}"),
            _ => seen.join(" and "),
        }
    }
}

fn look(t: &Tensor) -> Result<Found> {
    let mut found = Found::default();
    match t.dtype() {
        DType::Float => {
            // One loop that vectorizes; values are examined one by one only if it fails.
            let values = t.slice::<f32>()?;
            if values.iter().fold(true, |ok, v| ok & v.is_finite()) {
                return Ok(found);
            }
            values.iter().for_each(|v| found.note((*v).into()));
        }
        DType::Double => t.slice::<f64>()?.iter().for_each(|v| found.note(*v)),
        DType::Half => t
            .slice::<f16>()?
            .iter()
            .for_each(|v| found.note((*v).into())),
        DType::Bfloat16 => t
            .slice::<bf16>()?
            .iter()
            .for_each(|v| found.note((*v).into())),
        other => return Err(internal!("{other} has no numbers to check")),
    }
    Ok(found)
}

fn check(build: &KernelBuild, what: fn(Found) -> String) -> Result<Box<dyn OpKernel>> {
    let message = build.attrs.str("message")?.to_string();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let found = look(ctx.input(0)?)?;
        if found.nan || found.minus || found.plus {
            let values = what(found);
            return Err(invalid_argument!("{message} : Tensor had {values} values"));
        }
        let value = ctx.take_input(0)?;
        ctx.set_output(0, value)
    }))
}

fn gradient(g: &mut GradientCtx) -> Result<()> {
    let message = format!(
        "Not a number (NaN) or infinity (Inf) values detected in gradient. b'{}'",
        g.attrs().str("message")?
    );
    let d = g.dy(0);
    let dx = d.make(
        "CheckNumerics",
        &[d],
        &[("message", message.as_str().into())],
    );
    g.set(0, dx)
}
