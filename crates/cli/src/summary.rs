//! Fetched tensors for display.

use ferroflow_runtime::{DType, Result, Tensor};
use ferroflow_tensor::{Element, bf16, dispatch, f16};

/// Formats `name dtype shape`, statistics of numbers, and the values, shortened.
pub fn describe(name: &str, t: &Tensor) -> String {
    let mut out = format!("{name}  {}{}", t.dtype().numpy_name(), t.shape());
    if let Some(numbers) = numbers(t).filter(|n| n.len() > 1) {
        let n_odd = numbers.iter().filter(|v| !v.is_finite()).count();
        let finite: Vec<f64> = numbers.into_iter().filter(|v| v.is_finite()).collect();
        if !finite.is_empty() {
            let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
            let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mean = finite.iter().sum::<f64>() / finite.len() as f64;
            let [min, max, mean] = [min, max, mean].map(short);
            out += &format!("  min {min} max {max} mean {mean}");
        }
        if n_odd > 0 {
            out += &format!("  ({n_odd} not finite)");
        }
    }
    let values = t.to_string();
    let (text, cut) = match values.char_indices().nth(600) {
        Some((i, _)) => (&values[..i], " …"),
        None => (values.as_str(), ""),
    };
    out + "\n  " + &text.replace('\n', "\n  ") + cut
}

/// Formats a number of any magnitude in few digits.
fn short(x: f64) -> String {
    match x.abs() {
        m if m == 0.0 || (1e-4..1e9).contains(&m) => format!("{x:.6}"),
        _ => format!("{x:.6e}"),
    }
}

/// Formats the `k` largest values of each row: `class score`, best first.
pub fn top(t: &Tensor, k: usize) -> Result<String> {
    let Some(values) = numbers(t) else {
        return Ok(format!(
            "  no scores: values of dtype {} have no order\n",
            t.dtype()
        ));
    };
    let n = t.shape().last().copied().unwrap_or(1).max(1);
    let mut out = String::new();
    for (row, scores) in values.chunks(n).enumerate() {
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_unstable_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        out += &format!("  row {row}:");
        for &class in order.iter().take(k) {
            out += &format!("  {class} ({:.4})", scores[class]);
        }
        out.push('\n');
    }
    Ok(out)
}

/// Formats the largest and the mean difference of two results, and in how many rows the largest value
/// is at the same place; `None` if they are not numbers.
pub fn differences(exact: &Tensor, made: &Tensor) -> Option<String> {
    let (a, b) = (numbers(exact)?, numbers(made)?);
    if a.len() != b.len() || a.is_empty() {
        return None;
    }
    let gaps = a.iter().zip(&b).map(|(a, b)| (a - b).abs());
    let (largest, sum) = gaps.fold((0f64, 0f64), |(m, s), gap| (m.max(gap), s + gap));
    let peak = a.iter().fold(0f64, |m, x| m.max(x.abs()));
    let width = exact.shape().last().copied().unwrap_or(1).max(1);
    let best = |row: &[f64]| (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j]));
    let rows = a.chunks(width).zip(b.chunks(width));
    let n_same = rows.clone().filter(|(a, b)| best(a) == best(b)).count();
    Some(format!(
        "largest difference {}, mean {}, of values up to {}; the same top 1 in {n_same} of {} rows",
        short(largest),
        short(sum / a.len() as f64),
        short(peak),
        rows.len(),
    ))
}

/// Returns the elements as numbers; `None` for other dtypes.
fn numbers(t: &Tensor) -> Option<Vec<f64>> {
    fn all<T: Element>(t: &Tensor, f: impl Fn(T) -> f64) -> Option<Vec<f64>> {
        Some(t.slice::<T>().ok()?.iter().map(|v| f(*v)).collect())
    }
    match t.dtype() {
        DType::Half => all::<f16>(t, |v| v.to_f64()),
        DType::Bfloat16 => all::<bf16>(t, |v| v.to_f64()),
        DType::Double => all::<f64>(t, |v| v),
        dtype => dispatch!(dtype, T in [f32, i8, i16, i32, i64, u8, u16, u32, u64] =>
            all::<T>(t, |v| v as f64), else None),
    }
}
