//! AsString (TensorFlow: `core/kernels/as_string_op.cc`).

use crate::ngrams::int32;
use crate::packer::strings_of;
use crate::printf::{Conversion, Flag, Format};
use crate::strings::each_written;
use ferroflow_base::{Result, invalid_argument, resource_exhausted};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, bf16, dispatch, f16, memory_limit};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "AsString",
    "input: T -> output: string | T: type \
     {float,double,int32,uint8,int16,int8,int64,bfloat16,uint16,half,uint32,uint64,complex64,\
     complex128,bool,variant,string}; precision: int = -1; scientific: bool = false; \
     shortest: bool = false; width: int = -1; fill: string = ''",
)
.shape(shapes::unchanged)
.kernel(as_string)
.not_differentiable()];

/// An element that has a text.
trait Text: Element {
    fn write(self, format: &Format, out: &mut Vec<u8>);
}

macro_rules! text {
    ($($ty:ty: $v:ident, $f:ident, $out:ident => $write:expr;)*) => {$(
        impl Text for $ty {
            fn write(self, $f: &Format, $out: &mut Vec<u8>) {
                let $v = self;
                $write
            }
        }
    )*};
}
text! {
    u8: v, f, out => f.unsigned(v.into(), out);
    u16: v, f, out => f.unsigned(v.into(), out);
    u32: v, f, out => f.unsigned(v.into(), out);
    u64: v, f, out => f.unsigned(v, out);
    i8: v, f, out => f.signed(v.into(), out);
    i16: v, f, out => f.signed(v.into(), out);
    i32: v, f, out => f.signed(v.into(), out);
    i64: v, f, out => f.signed(v, out);
    f16: v, f, out => f.float(f64::from(v), out);
    bf16: v, f, out => f.float(flushed(v.into()), out);
    f32: v, f, out => f.float(flushed(v), out);
    f64: v, f, out => f.float(flushed_double(v), out);
    bool: v, _f, out => out.extend_from_slice(if v { b"true" } else { b"false" });
    Complex32: v, f, out => complex([flushed(v.re), flushed(v.im)], f, out);
    Complex64: v, f, out => complex([flushed_double(v.re), flushed_double(v.im)], f, out);
}

/// Denormal numbers are zero on TensorFlow's threads.
fn flushed(v: f32) -> f64 {
    f64::from(if v.is_subnormal() {
        0f32.copysign(v)
    } else {
        v
    })
}

fn flushed_double(v: f64) -> f64 {
    if v.is_subnormal() {
        0f64.copysign(v)
    } else {
        v
    }
}

fn complex(parts: [f64; 2], format: &Format, out: &mut Vec<u8>) {
    for (before, part) in [b'(', b','].into_iter().zip(parts) {
        out.push(before);
        format.float(part, out);
    }
    out.push(b')');
}

fn format_of(attrs: &Attrs, dtype: DType) -> Result<Format> {
    let precision = int32(attrs.int("precision")?, "precision")?;
    let (scientific, shortest) = (attrs.bool("scientific")?, attrs.bool("shortest")?);
    let width = int32(attrs.int("width")?, "width")?;
    let fill = attrs.bytes("fill")?;
    if !(dtype == DType::String || dtype.is_floating() || dtype.is_complex()) {
        if scientific || shortest {
            return Err(invalid_argument!(
                "scientific and shortest format not supported for datatype {dtype}"
            ));
        }
        if precision >= 0 {
            return Err(invalid_argument!(
                "precision not supported for datatype {dtype}"
            ));
        }
    }
    if fill.len() > 1 {
        return Err(invalid_argument!(
            "Fill string must be one or fewer characters"
        ));
    }
    if scientific && shortest {
        return Err(invalid_argument!(
            "Cannot select both scientific and shortest notation"
        ));
    }
    let flag = match fill.first() {
        None => Flag::None,
        Some(b' ') => Flag::Space,
        Some(b'+') => Flag::Plus,
        Some(b'-') => Flag::Left,
        Some(b'0') => Flag::Zeros,
        Some(b'#') => Flag::Alternate,
        Some(_) => {
            return Err(invalid_argument!(
                "Fill argument not supported: \"{}\"",
                String::from_utf8_lossy(fill)
            ));
        }
    };
    let conversion = match (scientific, shortest) {
        (true, _) => Conversion::Scientific,
        (_, true) => Conversion::Shortest,
        _ => Conversion::Fixed,
    };
    let precision = usize::try_from(precision).ok();
    let width = usize::try_from(width).unwrap_or(0);
    Ok(Format::new(flag, width, precision, conversion))
}

fn as_string(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    let format = format_of(build.attrs, dtype)?;
    if dtype == DType::String {
        return Ok(Box::new(move |ctx: &mut KernelCtx| strings(ctx, &format)));
    }
    dispatch!(dtype, T in [
            f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32, Complex64
        ] => Ok(Box::new(move |ctx: &mut KernelCtx| numbers::<T>(ctx, &format))),
        else Err(build.unsupported(dtype)))
}

/// Refuses texts that would fill the memory.
fn check_size(n: usize, format: &Format) -> Result<()> {
    let bytes = n as u128 * format.min_len() as u128;
    if bytes > memory_limit() as u128 {
        return Err(resource_exhausted!(
            "OOM when formatting {n} elements in {} characters each",
            format.min_len()
        ));
    }
    Ok(())
}

fn numbers<T: Text>(ctx: &mut KernelCtx, format: &Format) -> Result<()> {
    let input = ctx.input(0)?;
    check_size(input.num_elements(), format)?;
    let values = input.slice::<T>()?;
    let texts = strings_of(ctx, input.shape(), |i, out| {
        out.write(|out| values[i].write(format, out));
    })?;
    ctx.set_output(0, texts)
}

fn strings(ctx: &mut KernelCtx, format: &Format) -> Result<()> {
    let input = ctx.input(0)?;
    if format.width == 0 {
        return ctx.set_output(0, input.clone());
    }
    check_size(input.num_elements(), format)?;
    each_written(ctx, |text, out| format.text(text, out))
}
