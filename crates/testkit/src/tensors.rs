//! Tensors as JSON: reading and comparing.

use base64::Engine;
use ferroflow_tensor::{Bytes, Complex, DType, Element, Shape, Tensor, bf16, dispatch, f16};
use serde_json::Value as Json;

/// Outcome of reading or comparing.
pub type Res<T> = Result<T, String>;

/// Reads a number; strings such as "nan" count.
pub fn number(v: &Json) -> Res<f64> {
    match v {
        Json::Number(n) => n.as_f64().ok_or("number".to_string()),
        Json::Bool(b) => Ok(*b as u8 as f64),
        Json::String(s) => s.parse::<f64>().map_err(|e| e.to_string()),
        _ => Err(format!("no number: {v}")),
    }
}

/// Reads `{dtype, shape, data}`.
pub fn tensor(json: &Json) -> Res<Tensor> {
    let dtype = json["dtype"]
        .as_str()
        .and_then(DType::from_name)
        .ok_or("dtype")?;
    let dims = json["shape"].as_array().ok_or("shape")?;
    let shape: Shape = dims
        .iter()
        .map(|d| d.as_u64().unwrap_or(0) as usize)
        .collect();
    let data = json["data"].as_array().ok_or("data")?;
    fn fill<T: Element>(shape: Shape, data: &[Json], f: impl Fn(&Json) -> Res<T>) -> Res<Tensor> {
        let values = data.iter().map(f).collect::<Res<Vec<T>>>()?;
        Tensor::from_slice(shape, &values).map_err(|e| e.to_string())
    }
    let int = |v: &Json| {
        v.as_i64()
            .map(i128::from)
            .or(v.as_u64().map(i128::from))
            .ok_or(format!("int {v}"))
    };
    let pair = |v: &Json| -> Res<(f64, f64)> { Ok((number(&v[0])?, number(&v[1])?)) };
    match dtype {
        DType::Float => fill::<f32>(shape, data, |v| Ok(number(v)? as f32)),
        DType::Double => fill::<f64>(shape, data, number),
        DType::Half => fill::<f16>(shape, data, |v| Ok(f16::from_f64(number(v)?))),
        DType::Bfloat16 => fill::<bf16>(shape, data, |v| Ok(bf16::from_f64(number(v)?))),
        DType::Bool => fill::<bool>(shape, data, |v| Ok(number(v)? != 0.0)),
        DType::Complex64 => fill(shape, data, |v| {
            pair(v).map(|(a, b)| Complex::new(a as f32, b as f32))
        }),
        DType::Complex128 => fill(shape, data, |v| pair(v).map(|(a, b)| Complex::new(a, b))),
        DType::String => {
            let strings = data
                .iter()
                .map(|v| base64(v["b64"].as_str().ok_or("b64")?).map(Bytes::from))
                .collect::<Res<Vec<_>>>()?;
            Tensor::from_strings(shape, strings).map_err(|e| e.to_string())
        }
        _ => dispatch!(stored(dtype), T in [i8, i16, i32, i64, u8, u16, u32, u64] =>
            fill::<T>(shape, data, |v| int(v).map(|i| i as T))
                .and_then(|t| t.bitcast(dtype).map_err(|e| e.to_string())),
            else Err(format!("rows of {dtype}"))),
    }
}

/// Returns the integers that a quantized dtype is stored as; any other dtype unchanged.
fn stored(dtype: DType) -> DType {
    match dtype {
        DType::Qint8 => DType::Int8,
        DType::Quint8 => DType::Uint8,
        DType::Qint16 => DType::Int16,
        DType::Quint16 => DType::Uint16,
        DType::Qint32 => DType::Int32,
        other => other,
    }
}

/// Decodes base64 text.
pub fn base64(s: &str) -> Res<Vec<u8>> {
    base64::engine::general_purpose::STANDARD
        .decode(s)
        .map_err(|e| e.to_string())
}

/// Decodes pairs of hexadecimal digits.
pub fn unhex(digits: &str) -> Res<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).map_err(|e| e.to_string())?;
        u8::from_str_radix(pair, 16).map_err(|e| e.to_string())
    };
    pairs.map(byte).collect()
}

/// Checks that `got` equals `expected` up to `tol` times the largest finite expected magnitude; NaN
/// equals NaN, infinities equal themselves.
pub fn compare(expected: &Tensor, got: &Tensor, tol: f64) -> Res<()> {
    if expected.dtype() != got.dtype() || expected.shape() != got.shape() {
        return Err(format!("expected {expected:?}, got {got:?}"));
    }
    let dtype = expected.dtype();
    if dtype == DType::String {
        return match expected.strings().unwrap() == got.strings().unwrap() {
            true => Ok(()),
            false => Err(format!("expected {expected}, got {got}")),
        };
    }
    let e = as_f64(expected)?;
    let g = as_f64(got)?;
    let scale = e
        .iter()
        .filter(|v| v.is_finite())
        .fold(0.0f64, |m, v| m.max(v.abs()));
    for (i, (e, g)) in e.iter().zip(&g).enumerate() {
        let same = e == g || (e.is_nan() && g.is_nan()) || (e - g).abs() <= tol * scale.max(1e-30);
        if !same {
            return Err(format!(
                "element {i}: expected {e}, got {g} (of {expected:?}: {expected} vs {got})"
            ));
        }
    }
    Ok(())
}

fn as_f64(t: &Tensor) -> Res<Vec<f64>> {
    let err = |e: ferroflow_base::Status| e.to_string();
    match t.dtype() {
        DType::Half => Ok(t
            .slice::<f16>()
            .map_err(err)?
            .iter()
            .map(|v| v.to_f64())
            .collect()),
        DType::Bfloat16 => Ok(t
            .slice::<bf16>()
            .map_err(err)?
            .iter()
            .map(|v| v.to_f64())
            .collect()),
        DType::Bool => Ok(t
            .slice::<bool>()
            .map_err(err)?
            .iter()
            .map(|v| *v as u8 as f64)
            .collect()),
        DType::Complex64 => Ok(t
            .slice::<Complex<f32>>()
            .map_err(err)?
            .iter()
            .flat_map(|v| [v.re as f64, v.im as f64])
            .collect()),
        DType::Complex128 => Ok(t
            .slice::<Complex<f64>>()
            .map_err(err)?
            .iter()
            .flat_map(|v| [v.re, v.im])
            .collect()),
        DType::Double => Ok(t.slice::<f64>().map_err(err)?.to_vec()),
        dtype if stored(dtype) != dtype => as_f64(&t.bitcast(stored(dtype)).map_err(err)?),
        dtype => dispatch!(dtype, T in [f32, i8, i16, i32, i64, u8, u16, u32, u64] =>
            Ok(t.slice::<T>().map_err(err)?.iter().map(|v| *v as f64).collect()),
            else Err(format!("comparing {dtype}"))),
    }
}
