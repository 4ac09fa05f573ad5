//! numpy files: `.npy` and `.npz`, both ways.

use crate::atomic_file::{self, write_output};
use ferroflow_base::{Result, Status, invalid_argument, not_found, unimplemented_error};
use ferroflow_tensor::{Complex32, Complex64, DType, Element, Shape, Tensor, dispatch, f16};
use npyz::WriterBuilder;
use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> Status + '_ {
    move |e| match e.kind() {
        // What the contents are wrong by.
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
            invalid_argument!("{}: {e}", path.display())
        }
        _ => atomic_file::io_error(path, &e),
    }
}

/// Reads a `.npy` file.
pub fn read_npy(path: &Path) -> Result<Tensor> {
    let file = BufReader::new(File::open(path).map_err(io_error(path))?);
    let npy = npyz::NpyFile::new(file).map_err(io_error(path))?;
    to_tensor(npy).map_err(|e| e.note(format!("in {}", path.display())))
}

/// Reads one array of a `.npz` file.
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

/// The names of the arrays of a `.npz` file.
pub fn npz_keys(path: &Path) -> Result<Vec<String>> {
    Ok(keys(&open_npz(path)?))
}

type Archive = zip::ZipArchive<BufReader<File>>;

fn open_npz(path: &Path) -> Result<Archive> {
    let file = BufReader::new(File::open(path).map_err(io_error(path))?);
    zip::ZipArchive::new(file)
        .map_err(|e| invalid_argument!("{} is no .npz file: {e}", path.display()))
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
        (TypeChar::Bool, _) => DType::Bool,
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
    dispatch!(dtype, T in [bool, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
        let values: Vec<T> = npy.into_vec().map_err(|e| invalid_argument!("bad numpy data: {e}"))?;
        from_order(shape, values, fortran)
    }, else Err(unimplemented_error!("numpy dtype of {dtype}")))
}

/// Column-major data is brought into row-major order.
fn from_order<T: Element>(shape: Shape, values: Vec<T>, fortran: bool) -> Result<Tensor> {
    if !fortran || shape.rank() < 2 {
        return Tensor::from_slice(shape, &values);
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
    let ordered: Vec<T> = (0..values.len())
        .map(|i| {
            let at = |d: usize| (i / row_major[d].max(1)) % shape[d].max(1) * strides[d];
            values[(0..shape.rank()).map(at).sum::<usize>()]
        })
        .collect();
    Tensor::from_slice(shape, &ordered)
}

/// Writes a `.npz` file: all of it, or nothing.
pub fn write_npz(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_output(path, &npz(path, arrays)?)
}

/// The bytes of a `.npz` file; of arrays with the same name it has the first.
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
            // numpy has no bfloat16: it is written as the float that it is.
            DType::Bfloat16 => widen(tensor)?,
            _ => tensor.clone(),
        };
        npz.start_file(format!("{name}.npy"), options)
            .map_err(zip_error)?;
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

fn widen(tensor: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = tensor
        .slice::<ferroflow_tensor::bf16>()?
        .iter()
        .map(|v| v.to_f32())
        .collect();
    Tensor::from_slice(tensor.shape().clone(), &values)
}
