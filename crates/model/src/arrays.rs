//! numpy files, `.npy` and `.npz`: reading and writing.

use crate::atomic_file::{self, write_output};
use ferroflow_base::{Result, Status, invalid_argument, not_found, unimplemented_error};
use ferroflow_tensor::{Bytes, Complex32, Complex64, DType, Shape, Tensor, dispatch, f16};
use npyz::WriterBuilder;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> Status + '_ {
    move |e| match e.kind() {
        // Errors in the content, as opposed to the file system.
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
            // The message of an invalid header has several lines.
            let text = e.to_string();
            let text = text.split("  --> ").next().unwrap_or(&text).trim_end();
            invalid_argument!("{}: {text}", path.display())
        }
        _ => atomic_file::io_error(path, &e),
    }
}

/// Reads a `.npy` file.
///
/// # Errors
/// INVALID_ARGUMENT if the content is not valid or has an unsupported dtype; a file system
/// error (such as NOT_FOUND) if the file cannot be read.
pub fn read_npy(path: &Path) -> Result<Tensor> {
    let file = BufReader::new(File::open(path).map_err(io_error(path))?);
    let npy = npyz::NpyFile::new(file).map_err(io_error(path))?;
    to_tensor(npy).map_err(|e| e.note(format!("in {}", path.display())))
}

/// Reads one array of a `.npz` file.
///
/// # Errors
/// NOT_FOUND if the file or the array does not exist; INVALID_ARGUMENT if the content is not
/// valid.
pub fn read_npz_key(path: &Path, key: &str) -> Result<Tensor> {
    let mut archive = open_npz(path)?;
    let keys = keys(&archive);
    let entry = archive.by_name(&format!("{key}.npy")).map_err(|_| {
        not_found!(
            "{} has no array '{key}'; it has: {}",
            path.display(),
            keys.join(", ")
        )
    })?;
    let npy = npyz::NpyFile::new(entry).map_err(io_error(path))?;
    to_tensor(npy).map_err(|e| e.note(format!("in {} at '{key}'", path.display())))
}

/// Returns the names of the arrays of a `.npz` file.
///
/// # Errors
/// NOT_FOUND if the file does not exist; INVALID_ARGUMENT if it is not a `.npz` file.
pub fn npz_keys(path: &Path) -> Result<Vec<String>> {
    Ok(keys(&open_npz(path)?))
}

type Archive = zip::ZipArchive<BufReader<File>>;

fn open_npz(path: &Path) -> Result<Archive> {
    let file = BufReader::new(File::open(path).map_err(io_error(path))?);
    zip::ZipArchive::new(file)
        .map_err(|e| invalid_argument!("{} is not a .npz file: {e}", path.display()))
}

fn keys(archive: &Archive) -> Vec<String> {
    let name = |n: &str| n.strip_suffix(".npy").map(str::to_string);
    archive
        .file_names()
        .filter_map(|n| name(&n.ok()?))
        .collect()
}

fn to_tensor<R: Read>(npy: npyz::NpyFile<R>) -> Result<Tensor> {
    use npyz::TypeChar;
    let npyz::DType::Plain(ty) = npy.dtype() else {
        return Err(unimplemented_error!(
            "structured numpy arrays are not supported"
        ));
    };
    let dtype = match (ty.type_char(), ty.num_bytes().unwrap_or(0)) {
        (TypeChar::ByteStr | TypeChar::UnicodeStr, _) => DType::String,
        (TypeChar::Bool, _) => DType::Bool,
        // numpy's representation of arrays of ml_dtypes.bfloat16.
        (TypeChar::RawData, 2) => DType::Bfloat16,
        (TypeChar::Float, 2) => DType::Half,
        (TypeChar::Float, 4) => DType::Float,
        (TypeChar::Float, 8) => DType::Double,
        (TypeChar::Int, 1) => DType::Int8,
        (TypeChar::Int, 2) => DType::Int16,
        (TypeChar::Int, 4) => DType::Int32,
        (TypeChar::Int, 8) => DType::Int64,
        (TypeChar::Uint, 1) => DType::Uint8,
        (TypeChar::Uint, 2) => DType::Uint16,
        (TypeChar::Uint, 4) => DType::Uint32,
        (TypeChar::Uint, 8) => DType::Uint64,
        (TypeChar::Complex, 8) => DType::Complex64,
        (TypeChar::Complex, 16) => DType::Complex128,
        _ => return Err(unimplemented_error!("numpy dtype {ty} is not supported")),
    };
    let dims: Vec<i64> = npy.shape().iter().map(|&d| d as i64).collect();
    let shape = Shape::checked(&dims)?;
    let fortran = npy.order() == npyz::Order::Fortran;
    let bad = |e| invalid_argument!("bad numpy data: {e}");
    if dtype == DType::String {
        let values: Vec<Bytes> = match ty.type_char() {
            TypeChar::ByteStr => {
                let values: Vec<Vec<u8>> = npy.into_vec().map_err(bad)?;
                values.into_iter().map(Bytes::from).collect()
            }
            _ => {
                let values: Vec<String> = npy.into_vec().map_err(bad)?;
                values.into_iter().map(Bytes::from).collect()
            }
        };
        let values = row_major(&shape, values, fortran);
        return Tensor::from_strings(shape, values);
    }
    if ty.endianness() != npyz::Endianness::Big && (!fortran || shape.rank() < 2) {
        let n_bytes = npy.len().saturating_mul(dtype.size() as u64);
        let mut data = npy.into_inner();
        let mut bytes = Vec::new();
        data.by_ref()
            .take(n_bytes)
            .read_to_end(&mut bytes)
            .map_err(bad)?;
        // The checksum is compared at the end of the archived file.
        data.read(&mut [0]).map_err(bad)?;
        return Tensor::from_bytes(dtype, shape, &bytes);
    }
    if dtype == DType::Bfloat16 {
        let values: Vec<Vec<u8>> = npy.into_vec().map_err(bad)?;
        let values = row_major(&shape, values, fortran);
        return Tensor::from_bytes(dtype, shape, &values.concat());
    }
    dispatch!(dtype, T in [bool, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
        let values: Vec<T> = npy.into_vec().map_err(bad)?;
        let values = row_major(&shape, values, fortran);
        Tensor::from_slice(shape, &values)
    }, else Err(unimplemented_error!("numpy dtype of {dtype}")))
}

/// Reorders column-major data to row-major.
fn row_major<T: Clone>(shape: &Shape, values: Vec<T>, fortran: bool) -> Vec<T> {
    if !fortran || shape.rank() < 2 {
        return values;
    }
    let strides: Vec<usize> = shape
        .iter()
        .scan(1, |stride, &d| {
            let s = *stride;
            *stride *= d;
            Some(s)
        })
        .collect();
    let row_major = shape.strides();
    (0..values.len())
        .map(|i| {
            let at = |d: usize| (i / row_major[d].max(1)) % shape[d].max(1) * strides[d];
            values[(0..shape.rank()).map(at).sum::<usize>()].clone()
        })
        .collect()
}

/// Writes a `.npz` file atomically.
///
/// # Errors
/// INVALID_ARGUMENT for dtypes that numpy does not have; a file system error if the file cannot be
/// written.
pub fn write_npz(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_output(path, &npz(path, arrays)?)
}

/// Returns the bytes of a `.npz` file; the first of several arrays of the same name wins.
fn npz(path: &Path, arrays: &[(String, Tensor)]) -> Result<Vec<u8>> {
    let file = Cursor::new(Vec::new());
    let zip_error = |e: zip::result::ZipError| invalid_argument!("{}: {e}", path.display());
    let mut npz = zip::ZipWriter::new(file);
    // Stored, not deflated: numpy's own `savez` does the same. Large arrays need 64-bit sizes.
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true);
    let mut names = std::collections::HashSet::new();
    for (name, tensor) in arrays.iter().filter(|(name, _)| names.insert(name)) {
        let shape: Vec<u64> = tensor.shape().iter().map(|&d| d as u64).collect();
        let tensor = match tensor.dtype() {
            // numpy has no bfloat16: it is written as float, which is exact.
            DType::Bfloat16 => widen(tensor)?,
            _ => tensor.clone(),
        };
        npz.start_file(format!("{name}.npy"), options)
            .map_err(zip_error)?;
        if tensor.dtype() == DType::String {
            write_strings(name, &shape, tensor.strings()?, &mut npz).map_err(io_error(path))?;
            continue;
        }
        dispatch!(tensor.dtype(), T in [bool, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
            let options = npyz::WriteOptions::<T>::new().default_dtype();
            let mut array =
                options.shape(&shape).writer(&mut npz).begin_nd().map_err(io_error(path))?;
            array.extend(tensor.slice::<T>()?.iter().copied()).map_err(io_error(path))?;
            array.finish().map_err(io_error(path))?;
        }, else return Err(unimplemented_error!("{} tensors cannot be written to a .npz file", tensor.dtype())));
    }
    Ok(npz.finish().map_err(zip_error)?.into_inner())
}

/// Writes strings in numpy's form: all padded with zeros to the length of the longest. Trailing
/// zeros of a string are lost.
fn write_strings(
    name: &str,
    shape: &[u64],
    strings: &[Bytes],
    to: &mut impl std::io::Write,
) -> std::io::Result<()> {
    let invalid = |e: String| std::io::Error::new(std::io::ErrorKind::InvalidData, e);
    if strings.iter().any(|s| s.last() == Some(&0)) {
        return Err(invalid(format!(
            "'{name}' has a string that ends with a zero byte, which numpy's arrays cannot hold"
        )));
    }
    let longest = strings.iter().map(Bytes::len).max().unwrap_or(0).max(1);
    let dtype = format!("|S{longest}").parse();
    let dtype = dtype.map_err(|e| invalid(format!("{e}")))?;
    let options = npyz::WriteOptions::<[u8]>::new().dtype(npyz::DType::Plain(dtype));
    let mut array = options.shape(shape).writer(to).begin_nd()?;
    for string in strings {
        array.push(string)?;
    }
    array.finish()
}

fn widen(tensor: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = tensor
        .slice::<ferroflow_tensor::bf16>()?
        .iter()
        .map(|v| v.to_f32())
        .collect();
    Tensor::from_slice(tensor.shape().clone(), &values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("ferroflow-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Returns the start of a `.npy` file of shape 2x2.
    fn header(dtype: &str, fortran: bool) -> Vec<u8> {
        let order = if fortran { "True" } else { "False" };
        let text = format!("{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': (2, 2), }}\n");
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.bytes());
        file
    }

    #[test]
    fn bytes_of_either_order_are_read() {
        let folder = folder("npy-bytes");
        let path = folder.join("a.npy");
        let rows: [(&str, bool, [u8; 8], [i16; 4]); 3] = [
            ("<i2", false, [1, 0, 2, 0, 3, 0, 4, 1], [1, 2, 3, 260]),
            (">i2", false, [0, 1, 0, 2, 0, 3, 1, 4], [1, 2, 3, 260]),
            ("<i2", true, [1, 0, 2, 0, 3, 0, 4, 1], [1, 3, 2, 260]),
        ];
        for (dtype, fortran, bytes, expected) in rows {
            let mut file = header(dtype, fortran);
            file.extend(bytes);
            std::fs::write(&path, &file).unwrap();
            assert_eq!(read_npy(&path).unwrap().slice::<i16>().unwrap(), expected);
            std::fs::write(&path, &file[..file.len() - 1]).unwrap();
            assert!(read_npy(&path).is_err(), "{dtype} is cut short");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_archive_with_a_flipped_byte_is_refused() {
        let folder = folder("npz-flipped");
        let path = folder.join("a.npz");
        let arrays = [("a".to_string(), Tensor::vector(&[1.5f32; 50]).unwrap())];
        write_npz(&path, &arrays).unwrap();
        let mut file = std::fs::read(&path).unwrap();
        let data = 1.5f32.to_le_bytes();
        let at = file.windows(4).position(|w| w == data).unwrap();
        file[at + 1] ^= 1;
        std::fs::write(&path, file).unwrap();
        let text = read_npz_key(&path, "a").unwrap_err().to_string();
        assert!(text.contains("hecksum"), "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn strings_go_both_ways() {
        let folder = folder("npz-strings");
        let path = folder.join("a.npz");
        let strings = ["a", "", "häß", "a\0b"].map(|s| Bytes::from(s.as_bytes()));
        let all = Tensor::from_strings([2, 2], strings.to_vec()).unwrap();
        let none = Tensor::from_strings([0, 3], Vec::new()).unwrap();
        let arrays = [
            ("s:0".to_string(), all.clone()),
            ("none".to_string(), none.clone()),
        ];
        write_npz(&path, &arrays).unwrap();
        assert!(read_npz_key(&path, "s:0").unwrap().same_value(&all));
        assert!(read_npz_key(&path, "none").unwrap().same_value(&none));
        let bad = [("bad".to_string(), Tensor::string("a\0"))];
        let text = write_npz(&path, &bad).unwrap_err().to_string();
        assert!(
            text.contains("'bad' has a string that ends with a zero"),
            "{text}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn numpys_code_points_are_read() {
        let folder = folder("npy-unicode");
        let path = folder.join("u.npy");
        let mut file = header("<U2", true);
        for code in ["ab", "c\0", "dé", "\0\0"].iter().flat_map(|s| s.chars()) {
            file.extend((code as u32).to_le_bytes());
        }
        std::fs::write(&path, file).unwrap();
        let t = read_npy(&path).unwrap();
        let expected = ["ab", "dé", "c", ""].map(Bytes::from);
        assert_eq!(t.strings().unwrap(), expected);
        assert_eq!(t.shape().dims(), [2, 2]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
