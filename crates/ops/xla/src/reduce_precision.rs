//! XlaReducePrecision: rounds floats to those of fewer bits (XLA: `EmitReducePrecisionIR` of
//! `service/elemental_ir_emitter.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, Element, bf16, dispatch, f16};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaReducePrecision",
    "operand: T -> output: T | T: type {bfloat16,half,float,double}; exponent_bits: int; mantissa_bits: int",
)
.shape(shapes::unchanged)
.kernel(reduce_precision)];

/// The bits of a kind of float.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    mantissa: u32,
}

impl Format {
    fn mask(bits: u32) -> u64 {
        (1u64 << bits).wrapping_sub(1)
    }

    fn bias(bits: u32) -> u64 {
        Self::mask(bits - 1)
    }

    /// Returns the float with these bits, rounded to one of the format `to`: ties to even, subnormal numbers to zero,
    /// too large ones to infinity.
    fn reduced(self, bits: u64, to: Format) -> u64 {
        let exponents = Self::mask(self.exponent) << self.mantissa;
        let magnitude = Self::mask(self.exponent + self.mantissa);
        if bits & magnitude > exponents {
            return bits;
        }
        let mut x = bits;
        if to.mantissa < self.mantissa {
            let dropped = self.mantissa - to.mantissa;
            let is_odd = (x >> dropped) & 1;
            x += is_odd + Self::mask(dropped - 1);
            x &= !Self::mask(dropped);
        }
        if to.exponent < self.exponent {
            let (bias, reach) = (Self::bias(self.exponent), Self::bias(to.exponent));
            let (exponent, sign) = (x & exponents, bits & !magnitude);
            if exponent > (bias + reach) << self.mantissa {
                x = sign | exponents;
            } else if exponent <= (bias - reach) << self.mantissa {
                x = sign;
            }
        }
        x
    }
}

/// A float as its bits.
trait Bits: Element {
    const FORMAT: Format;
    fn bits(self) -> u64;
    fn of_bits(bits: u64) -> Self;
}

macro_rules! floats {
    ($($ty:ty, $uint:ty, $exponent:literal, $mantissa:literal;)*) => {$(
        impl Bits for $ty {
            const FORMAT: Format = Format { exponent: $exponent, mantissa: $mantissa };
            #[inline(always)]
            fn bits(self) -> u64 { self.to_bits().into() }
            #[inline(always)]
            fn of_bits(bits: u64) -> Self { <$ty>::from_bits(bits as $uint) }
        }
    )*};
}
floats! {
    f64, u64, 11, 52;
    f32, u32, 8, 23;
    f16, u16, 5, 10;
    bf16, u16, 8, 7;
}

fn reduce_precision(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let bits = |name: &str, least: i64, sign: &str| {
        let bits = build.attrs.int(name)?;
        match bits < least {
            true => Err(invalid_argument!(
                "'mhlo.reduce_precision' op attribute '{name}' failed to satisfy constraint: 32-bit signless \
                 integer attribute whose value is {sign}"
            )),
            // More than any float has changes nothing.
            false => Ok(bits.min(64) as u32),
        }
    };
    let to = Format {
        exponent: bits("exponent_bits", 1, "positive")?,
        mantissa: bits("mantissa_bits", 0, "non-negative")?,
    };
    let dtype: DType = build.input(0)?;
    dispatch!(dtype, T in [f32, f64, f16, bf16] =>
        Ok(Box::new(move |ctx: &mut KernelCtx| compute::<T>(ctx, to))),
        else Err(build.unsupported(dtype)))
}

fn compute<T: Bits>(ctx: &mut KernelCtx, to: Format) -> Result<()> {
    let mut x = ctx.take_input(0)?;
    par_rows(ctx.par(), x.slice_mut::<T>()?, 1, &|_, row| {
        for x in row {
            *x = T::of_bits(T::FORMAT.reduced(x.bits(), to));
        }
    });
    ctx.set_output(0, x)
}
