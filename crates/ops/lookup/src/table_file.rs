//! Text files that initialize tables, one entry per line.

use ferroflow_base::{Result, invalid_argument, not_found, out_of_range};
use ferroflow_functors::number_text::Number;
use ferroflow_opdef::Attrs;
use ferroflow_resources::file_system::{files, local_path};
use ferroflow_tensor::{Bytes, DType, Tensor, dispatch};

/// The whole line, as a column number.
const WHOLE_LINE: i64 = -2;
/// The number of the line, as a column number.
const LINE_NUMBER: i64 = -1;

/// The columns of keys and values in a file.
pub(crate) struct TextFile {
    key: i64,
    value: i64,
    vocab_size: i64,
    delimiter: u8,
    offset: i64,
}

impl TextFile {
    pub(crate) fn of(attrs: &Attrs) -> Result<TextFile> {
        let [delimiter] = attrs.bytes("delimiter")?[..] else {
            return Err(invalid_argument!("delimiter should be only 1 char"));
        };
        Ok(TextFile {
            key: attrs.int("key_index")?,
            value: attrs.int("value_index")?,
            vocab_size: attrs.int("vocab_size")?,
            delimiter,
            offset: attrs.int("offset")?,
        })
    }
}

/// Returns the keys and values of the file at `path`.
pub(crate) fn read(
    file: &TextFile,
    path: &str,
    key: DType,
    value: DType,
) -> Result<(Tensor, Tensor)> {
    for (what, lower, index, dtype) in [
        ("Key", "key", file.key, key),
        ("Value", "value", file.value, value),
    ] {
        if index == LINE_NUMBER && dtype != DType::Int64 {
            return Err(invalid_argument!(
                "{what} index for line number requires table {lower} dtype of int64, got {dtype}"
            ));
        }
    }
    let content =
        files::read(local_path(path)).map_err(|e| match files::file_system_error(&e) {
            Some(error) => error,
            None if e.kind() == std::io::ErrorKind::NotFound => {
                not_found!("{path}; No such file or directory")
            }
            None => invalid_argument!("{path}; {e}"),
        })?;
    let lines = lines(file, path, content.into())?;
    let column = |index, dtype| column(file, path, &lines, index, dtype);
    Ok((column(file.key, key)?, column(file.value, value)?))
}

/// Returns the lines to use.
fn lines(file: &TextFile, path: &str, content: Bytes) -> Result<Vec<Bytes>> {
    let limit = usize::try_from(file.vocab_size).ok();
    let mut lines = Vec::new();
    let mut at = 0;
    while at < content.len() && limit.is_none_or(|limit| lines.len() < limit) {
        let length = content[at..].iter().position(|&b| b == b'\n');
        let end = length.map_or(content.len(), |n| at + n);
        let mut line = content.slice(at..end);
        at = end + usize::from(length.is_some());
        if line.contains(&b'\r') {
            line = line.iter().copied().filter(|&b| b != b'\r').collect();
        }
        if line.is_empty() {
            return Err(invalid_argument!(
                "Invalid content in {path}: empty line found at position {at}."
            ));
        }
        lines.push(line);
    }
    if let Some(limit) = limit
        && lines.len() < limit
    {
        return Err(invalid_argument!(
            "Invalid vocab_size in {path}: expected {limit} but got {}",
            lines.len()
        ));
    }
    if content.is_empty() {
        return Err(out_of_range!("Read less bytes than requested"));
    }
    if lines.is_empty() {
        return Err(out_of_range!("Finished reading 0 of lines from {path}"));
    }
    Ok(lines)
}

fn column(
    file: &TextFile,
    path: &str,
    lines: &[Bytes],
    index: i64,
    dtype: DType,
) -> Result<Tensor> {
    if index == LINE_NUMBER {
        let numbers: Vec<i64> = (0..lines.len() as i64)
            .map(|i| i.wrapping_add(file.offset))
            .collect();
        return Tensor::vector(&numbers);
    }
    let least = file.key.max(file.value);
    let field = |(i, line): (usize, &Bytes)| -> Result<Bytes> {
        if index == WHOLE_LINE {
            return Ok(line.clone());
        }
        let mut fields = line.split(|&b| b == file.delimiter);
        let n_fields = line.iter().filter(|&&b| b == file.delimiter).count() + 1;
        let column = usize::try_from(index).ok();
        match column.and_then(|c| fields.nth(c)) {
            Some(field) if (n_fields as i64) > least => Ok(line.slice_ref(field)),
            _ => Err(invalid_argument!(
                "Invalid number of columns in {path} line {i} ({}) : expected at least {} got {n_fields}",
                String::from_utf8_lossy(line),
                least.saturating_add(1)
            )),
        }
    };
    let fields = lines.iter().enumerate().map(field);
    let fields = fields.collect::<Result<Vec<Bytes>>>()?;
    if dtype == DType::String {
        return Tensor::from_strings([fields.len()], fields);
    }
    dispatch!(dtype, T in [i32, i64, f32, f64] => Tensor::vector(&numbers::<T>(&fields, dtype)?),
        else Err(invalid_argument!("Data type {dtype} not supported.")))
}

fn numbers<T: Number>(fields: &[Bytes], dtype: DType) -> Result<Vec<T>> {
    let number = |(i, field): (usize, &Bytes)| {
        T::parse(field).ok_or_else(|| {
            let field = String::from_utf8_lossy(field);
            invalid_argument!("Field {field} in line {i} is not a valid {dtype}.")
        })
    };
    fields.iter().enumerate().map(number).collect()
}
