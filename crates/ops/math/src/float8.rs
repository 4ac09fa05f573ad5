//! 8-bit floats: a sign, an exponent of four or five bits, a mantissa of three or two (Micikevicius
//! et al., "FP8 formats for deep learning", 2022).

use ferroflow_tensor::DType;
use std::sync::LazyLock;

/// A format and the values of its 256 bit patterns.
pub(crate) struct Float8 {
    /// The exponent of the smallest normal number.
    smallest: i32,
    mantissa_bits: u32,
    /// Bits of the largest finite number, of larger ones, and of NaN.
    largest: u8,
    beyond: u8,
    nan: u8,
    values: [f32; 256],
}

static E5M2: LazyLock<Float8> = LazyLock::new(|| Float8::new(-14, 2, [0x7b, 0x7c, 0x7e]));
/// Without infinities: too large values become NaN.
static E4M3FN: LazyLock<Float8> = LazyLock::new(|| Float8::new(-6, 3, [0x7e, 0x7f, 0x7f]));

/// Returns the format of a dtype that has one.
pub(crate) fn format(dtype: DType) -> Option<&'static Float8> {
    match dtype {
        DType::Float8E5m2 => Some(&E5M2),
        DType::Float8E4m3fn => Some(&E4M3FN),
        _ => None,
    }
}

impl Float8 {
    fn new(smallest: i32, mantissa_bits: u32, [largest, beyond, nan]: [u8; 3]) -> Self {
        let mut format = Float8 {
            smallest,
            mantissa_bits,
            largest,
            beyond,
            nan,
            values: [0.0; 256],
        };
        format.values = std::array::from_fn(|bits| format.value(bits as u8));
        format
    }

    fn value(&self, bits: u8) -> f32 {
        let size = bits & 0x7f;
        let unit = 1u8 << self.mantissa_bits;
        let exponent = i32::from(size >> self.mantissa_bits);
        let mantissa = f32::from(size % unit);
        let value = match exponent {
            _ if size > self.largest && size == self.beyond && self.beyond != self.nan => {
                f32::INFINITY
            }
            _ if size > self.largest => f32::NAN,
            0 => mantissa * self.quantum(self.smallest) as f32,
            exponent => {
                let quantum = self.quantum(self.smallest + exponent - 1);
                (f32::from(unit) + mantissa) * quantum as f32
            }
        };
        if bits > 0x7f { -value } else { value }
    }

    /// Returns the distance of neighbors with this exponent.
    fn quantum(&self, exponent: i32) -> f64 {
        2f64.powi(exponent - self.mantissa_bits as i32)
    }

    pub(crate) fn decode(&self, bits: u8) -> f32 {
        self.values[usize::from(bits)]
    }

    /// Rounds to the nearest number, ties to even.
    pub(crate) fn encode(&self, x: f64) -> u8 {
        let sign = u8::from(x.is_sign_negative()) << 7;
        let size = x.abs();
        if size.is_nan() {
            return sign | self.nan;
        }
        if size.is_infinite() {
            return sign | self.beyond;
        }
        // The exponent of a double; subnormal doubles round to zero here.
        let exponent = (size.to_bits() >> 52) as i32 - 1023;
        let exponent = exponent.max(self.smallest);
        if exponent > 64 {
            return sign | self.beyond;
        }
        let steps = (size / self.quantum(exponent)).round_ties_even() as u32;
        let bits = (((exponent - self.smallest) as u32) << self.mantissa_bits) + steps;
        let size = if bits > self.largest.into() {
            self.beyond
        } else {
            bits as u8
        };
        sign | size
    }
}

#[test]
fn what_is_decoded_is_encoded_again() {
    for format in [&*E5M2, &*E4M3FN] {
        for bits in 0..=255u8 {
            let value = format.decode(bits);
            match value.is_nan() {
                true => assert!(format.decode(format.encode(value.into())).is_nan()),
                false => assert_eq!(format.encode(value.into()), bits, "{value}"),
            }
        }
    }
}
