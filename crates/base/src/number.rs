//! Numbers as text.

/// Formats `v` like C's `%.{digits}g`.
///
/// ```
/// use ferroflow_base::general;
/// let texts = [0.2, 1e-5, 100.0, 1e6, f64::NAN].map(|x| general(x, 6));
/// assert_eq!(texts, ["0.2", "1e-05", "100", "1e+06", "nan"]);
/// ```
pub fn general(v: f64, digits: usize) -> String {
    if v.is_nan() {
        return "nan".to_string();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.to_string();
    }
    let scientific = format!("{:.*e}", digits.saturating_sub(1), v);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    trim(&format!("{v:.decimals$}"))
}
