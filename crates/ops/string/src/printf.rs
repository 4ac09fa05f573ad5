//! Numbers in the formats of C's `printf`: `%d`, `%u`, `%f`, `%e`, `%g` and `%s`.

/// The one flag of a format.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    None,
    /// A space instead of a plus.
    Space,
    Plus,
    /// Padded behind the number.
    Left,
    /// Padded with zeros.
    Zeros,
    /// Keeps the decimal point and trailing zeros.
    Alternate,
}

/// How floating-point numbers are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// `%f`.
    Fixed,
    /// `%e`.
    Scientific,
    /// `%g`.
    Shortest,
}

/// A conversion specification.
pub(crate) struct Format {
    flag: Flag,
    /// The least number of characters.
    pub(crate) width: usize,
    precision: Option<usize>,
    conversion: Conversion,
}

/// More digits than any `f64` has: those behind are zeros.
const MAX_DIGITS: usize = 1100;

impl Format {
    pub(crate) fn new(
        flag: Flag,
        width: usize,
        precision: Option<usize>,
        conversion: Conversion,
    ) -> Format {
        Format {
            flag,
            width,
            precision,
            conversion,
        }
    }

    /// The number of characters that every number takes.
    pub(crate) fn min_len(&self) -> usize {
        let keeps_zeros = self.conversion != Conversion::Shortest || self.flag == Flag::Alternate;
        self.width.max(match keeps_zeros {
            true => self.precision.unwrap_or(0),
            false => 0,
        })
    }

    pub(crate) fn unsigned(&self, v: u64, out: &mut Vec<u8>) {
        self.pad("", &v.to_string(), true, out);
    }

    pub(crate) fn signed(&self, v: i64, out: &mut Vec<u8>) {
        let digits = v.unsigned_abs().to_string();
        self.pad(self.sign(v < 0), &digits, true, out);
    }

    pub(crate) fn float(&self, v: f64, out: &mut Vec<u8>) {
        let sign = self.sign(v.is_sign_negative());
        if !v.is_finite() {
            let text = if v.is_nan() { "nan" } else { "inf" };
            return self.pad(sign, text, false, out);
        }
        let (v, precision) = (v.abs(), self.precision.unwrap_or(6));
        let alternate = self.flag == Flag::Alternate;
        let text = match self.conversion {
            Conversion::Fixed => fixed(v, precision, alternate),
            Conversion::Scientific => scientific(v, precision, alternate),
            Conversion::Shortest => shortest(v, precision.max(1), alternate),
        };
        self.pad(sign, &text, true, out);
    }

    /// A string, cut to the precision.
    pub(crate) fn text(&self, text: &[u8], out: &mut Vec<u8>) {
        let end = text.len().min(self.precision.unwrap_or(usize::MAX));
        let padding = self.width.saturating_sub(end);
        let (before, behind) = match self.flag {
            Flag::Left => (0, padding),
            _ => (padding, 0),
        };
        out.extend(std::iter::repeat_n(b' ', before));
        out.extend_from_slice(&text[..end]);
        out.extend(std::iter::repeat_n(b' ', behind));
    }

    fn sign(&self, is_negative: bool) -> &'static str {
        match self.flag {
            _ if is_negative => "-",
            Flag::Plus => "+",
            Flag::Space => " ",
            _ => "",
        }
    }

    fn pad(&self, sign: &str, digits: &str, zeros: bool, out: &mut Vec<u8>) {
        let padding = self.width.saturating_sub(sign.len() + digits.len());
        let fill = |byte, out: &mut Vec<u8>| out.extend(std::iter::repeat_n(byte, padding));
        let with_zeros = zeros && self.flag == Flag::Zeros;
        if !with_zeros && self.flag != Flag::Left {
            fill(b' ', out);
        }
        out.extend_from_slice(sign.as_bytes());
        if with_zeros {
            fill(b'0', out);
        }
        out.extend_from_slice(digits.as_bytes());
        if self.flag == Flag::Left {
            fill(b' ', out);
        }
    }
}

fn push_zeros(text: &mut String, n: usize) {
    text.extend(std::iter::repeat_n('0', n));
}

fn fixed(v: f64, precision: usize, alternate: bool) -> String {
    let exact = precision.min(MAX_DIGITS);
    let mut text = format!("{v:.exact$}");
    push_zeros(&mut text, precision - exact);
    if precision == 0 && alternate {
        text.push('.');
    }
    text
}

/// The digits with `precision` of them behind the point, and the exponent.
fn mantissa(v: f64, precision: usize) -> (String, i32) {
    let exact = precision.min(MAX_DIGITS);
    let text = format!("{v:.exact$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let mut digits = digits.to_string();
    push_zeros(&mut digits, precision - exact);
    (digits, exponent.parse().unwrap_or(0))
}

fn with_exponent(mut digits: String, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    digits += &format!("e{sign}{:02}", exponent.unsigned_abs());
    digits
}

fn scientific(v: f64, precision: usize, alternate: bool) -> String {
    let (mut digits, exponent) = mantissa(v, precision);
    if precision == 0 && alternate {
        digits.push('.');
    }
    with_exponent(digits, exponent)
}

fn shortest(v: f64, precision: usize, alternate: bool) -> String {
    // Trailing zeros are removed again: no need to write all of them.
    let precision = match alternate {
        true => precision,
        false => precision.min(MAX_DIGITS),
    };
    let (mut digits, exponent) = mantissa(v, precision - 1);
    let behind = precision as i64 - 1 - i64::from(exponent);
    let is_fixed = exponent >= -4 && behind >= 0;
    if is_fixed {
        digits = fixed(v, behind as usize, alternate);
    } else if precision == 1 && alternate {
        digits.push('.');
    }
    if !alternate && digits.contains('.') {
        let len = digits.trim_end_matches('0').trim_end_matches('.').len();
        digits.truncate(len);
    }
    match is_fixed {
        true => digits,
        false => with_exponent(digits, exponent),
    }
}
