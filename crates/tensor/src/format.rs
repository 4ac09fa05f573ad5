//! Formatting of tensors for display: like numpy, shortened in the middle.

use crate::{DType, Tensor, dispatch};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};
use std::fmt::{self, Write};

/// At most this many elements are shown before the middle is left out.
const MAX_SHOWN: usize = 1000;
/// Elements shown at either end of a shortened dimension.
const EDGE: usize = 3;

impl Tensor {
    /// Formats element `i` (row-major); empty if there is no such element.
    pub fn format_element(&self, i: usize) -> String {
        if i >= self.num_elements() {
            return String::new();
        }
        match self.dtype() {
            DType::String => match self.strings() {
                Ok(v) => format!("{:?}", String::from_utf8_lossy(&v[i])),
                Err(_) => String::new(),
            },
            DType::Resource => "<resource>".to_string(),
            DType::Variant => "<variant>".to_string(),
            DType::Float => self
                .slice::<f32>()
                .map(|s| number(s[i]))
                .unwrap_or_default(),
            DType::Double => self
                .slice::<f64>()
                .map(|s| number(s[i]))
                .unwrap_or_default(),
            dtype => dispatch!(dtype,
            T in [f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool, Complex32, Complex64] =>
                self.slice::<T>().map(|s| s[i].to_string()).unwrap_or_default(),
            else match self.bytes() {
                Ok(b) => format!("{:?}", &b[i * dtype.size()..(i + 1) * dtype.size()]),
                Err(_) => String::new(),
            }),
        }
    }

    fn format_dim(&self, out: &mut String, dim: usize, start: usize, shorten: bool) {
        let dims = self.shape().dims();
        if dim == dims.len() {
            out.push_str(&self.format_element(start));
            return;
        }
        let stride: usize = dims[dim + 1..].iter().product();
        out.push('[');
        let n = dims[dim];
        let mut i = 0;
        while i < n {
            if i > 0 {
                let innermost = dim + 1 == dims.len();
                out.push_str(if innermost { " " } else { "\n" });
                if !innermost {
                    out.extend(std::iter::repeat_n(' ', dim + 1));
                }
            }
            if shorten && n > 2 * EDGE && i == EDGE {
                out.push_str("...");
                i = n - EDGE;
                continue;
            }
            self.format_dim(out, dim + 1, start + i * stride, shorten);
            i += 1;
        }
        out.push(']');
    }
}

/// Formats a float in the fewest digits that read back as the same value, with an exponent instead
/// of many zeros.
fn number<T: Copy + Into<f64> + fmt::Display + fmt::LowerExp>(x: T) -> String {
    match x.into().abs() {
        m if m == 0.0 || (1e-5..1e16).contains(&m) || !m.is_finite() => x.to_string(),
        _ => format!("{x:e}"),
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        self.format_dim(&mut out, 0, 0, self.num_elements() > MAX_SHOWN);
        f.write_str(&out)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = format!("{}{}", self.dtype(), self.shape());
        if self.num_elements() <= 8 {
            write!(out, " {self}")?;
        }
        f.write_str(&out)
    }
}

#[cfg(test)]
mod tests {
    use crate::Tensor;

    #[test]
    fn shows_like_numpy() {
        let t = Tensor::from_slice([2, 2], &[1i32, 2, 3, 4]).unwrap();
        assert_eq!(t.to_string(), "[[1 2]\n [3 4]]");
        assert_eq!(Tensor::scalar(true).to_string(), "true");
        let long = Tensor::vector(&vec![1u8; 2000]).unwrap();
        assert_eq!(long.to_string(), "[1 1 1 ... 1 1 1]");
        let odd = [
            0.0,
            -0.0,
            0.5,
            1e15,
            1e16,
            -1e300,
            1e-5,
            5e-324,
            f64::INFINITY,
            f64::NAN,
        ];
        let odd = Tensor::vector(&odd).unwrap();
        let shown = "[0 -0 0.5 1000000000000000 1e16 -1e300 0.00001 5e-324 inf NaN]";
        assert_eq!(odd.to_string(), shown);
        let single = Tensor::vector(&[f32::MAX, 1.5e-7]).unwrap();
        assert_eq!(single.to_string(), "[3.4028235e38 1.5e-7]");
        assert_eq!(Tensor::string("a\"b").to_string(), r#""a\"b""#);
    }
}
